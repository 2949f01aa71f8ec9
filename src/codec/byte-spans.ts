/** A message as consecutive pieces. Pieces in the shared memory are not joined or copied. */
export type Spans = readonly Uint8Array[];
