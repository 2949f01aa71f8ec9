/**
 * A message as pieces that follow one another; nothing is joined or copied when they lie in the
 * memory.
 */
export type Spans = readonly Uint8Array[];
