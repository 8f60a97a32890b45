"""What a capture hands over besides the traces: facts.json of a rank as frozen dataclasses.

`perfdoctor.capture.inject` writes the file in the user's process, as plain dictionaries; `CapturedFacts.parse` reads
it. The JSON Schema that recordings are checked by (`perfdoctor/capture/facts.schema.json`) is made of these classes by
`docs/make_schemas.py`: what has no field here may not be written.
"""
