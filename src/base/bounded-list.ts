/** The first entries of a list that may have millions, and the total count. */
export class BoundedList<T> {
  readonly held: T[] = [];
  readonly #heldMax: number;
  #count = 0;

  constructor(heldMax: number) {
    this.#heldMax = heldMax;
  }

  /** The number of added entries. */
  get count(): number {
    return this.#count;
  }

  get notHeld(): number {
    return this.#count - this.held.length;
  }

  add(entry: T): void {
    this.#count++;
    if (this.held.length < this.#heldMax) this.held.push(entry);
  }
}
