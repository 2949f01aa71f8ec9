export type SplitterKind = 'buzhash' | 'fixed' | 'rabin-karp' | 'fastcdc';

/** Parameters of the cut points. Sizes are bytes of one chunk. */
export interface SplitterSpec {
  readonly name: string;
  readonly kind: SplitterKind;
  readonly minBytes: number;
  readonly avgBytes: number;
  readonly maxBytes: number;
}

/**
 * Finds cut points in a stream. The cuts do not depend on the slices in which it arrives. A cut is
 * the end of a chunk, as an offset in the stream; cuts ascend. The end of the stream also ends a
 * chunk, and is never returned.
 */
export interface Splitter {
  /** Returns the cuts that are certain after `data`. They may lie before `data` (FastCDC). */
  push(data: Uint8Array): number[];
  /** Returns the last cuts. The splitter must not be used afterwards. */
  finish(): number[];
}
