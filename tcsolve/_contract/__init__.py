"""What every backend offers: the primitives of linear algebra."""
