"""Recordings as people make them with torch.profiler themselves: does the report name the cause?"""
