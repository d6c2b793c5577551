"""What kernels take bytes from."""

Buffer = bytes | bytearray | memoryview
