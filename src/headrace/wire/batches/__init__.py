"""Record batches, format 2: headers, records, compression, control batches."""
