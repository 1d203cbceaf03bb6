"""Export of encoders: folders that sentence-transformers and onnxruntime load without xcflow."""
