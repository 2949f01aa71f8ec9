/** Our choice: 128 KiB of four-byte numbers, which malloc takes and returns individually. */
const PIECE_LENGTH = 1 << 15;

type Numbers = Uint8Array | Uint16Array | Uint32Array | Float64Array;

/**
 * A growing array of numbers. Unset numbers are 0. The array grows in pieces without copies, so it
 * is never in memory twice.
 */
export class Column {
  readonly #type: new (length: number) => Numbers;
  readonly #pieces: Numbers[] = [];

  constructor(type: new (length: number) => Numbers) {
    this.#type = type;
  }

  get bytes(): number {
    return this.#pieces.reduce((total, { byteLength }) => total + byteLength, 0);
  }

  get(at: number): number {
    return this.#pieces[Math.floor(at / PIECE_LENGTH)]?.[at % PIECE_LENGTH] ?? 0;
  }

  set(at: number, value: number): void {
    const piece = Math.floor(at / PIECE_LENGTH);
    while (this.#pieces.length <= piece) this.#pieces.push(new this.#type(PIECE_LENGTH));
    (this.#pieces[piece] as Numbers)[at % PIECE_LENGTH] = value;
  }
}
