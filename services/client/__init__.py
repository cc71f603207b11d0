"""A client that streams answers from an OpenAI server and resumes a stream whose connection breaks."""
