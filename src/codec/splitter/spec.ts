export type SplitterKind = 'buzhash' | 'fixed' | 'rabin-karp' | 'fastcdc';

/** What decides cut points. Sizes are bytes of one chunk. */
export interface SplitterSpec {
  readonly name: string;
  readonly kind: SplitterKind;
  readonly minBytes: number;
  readonly avgBytes: number;
  readonly maxBytes: number;
}

/**
 * Finds cut points in a stream that arrives in any slices; the cuts do not depend on the slicing.
 * Cuts are offsets from the start of the stream, ascending, each the end of a chunk. The end of the
 * stream ends the last chunk and is never returned.
 */
export interface Splitter {
  /** Cuts that are certain once `data` has been seen; they may lie before `data` (FastCDC). */
  push(data: Uint8Array): number[];
  /** Cuts that the end of the stream decides. The splitter must not be used afterwards. */
  finish(): number[];
}
