"""Max pooling that remembers where its maximum was in one byte."""
