"""Ops run in threads that the profiler does not follow: the recording holds none."""

# says: no op of PyTorch is in the trace
import sys

from models import Block, Net, nn, time, torch
import threading, queue, random
from torch.profiler import profile, ProfilerActivity

net = Net().eval()
q = queue.Queue()
lock = threading.Lock()


def work():
    while True:
        n = q.get()
        if n is None:
            return
        with lock, torch.inference_mode():
            out = net(torch.randint(0, 5000, (1, n)))
            out.softmax(-1).topk(5)


ts = [threading.Thread(target=work) for _ in range(2)]
with profile(activities=[ProfilerActivity.CPU], with_stack=True, record_shapes=True) as p:
    for t in ts:
        t.start()
    for i in range(60):
        q.put(random.choice([16, 32, 64]))
        time.sleep(0.02)
    for _ in ts:
        q.put(None)
    for t in ts:
        t.join()
p.export_chrome_trace(sys.argv[1] + "/trace.json")
