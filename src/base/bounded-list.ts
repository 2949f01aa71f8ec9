/** The first entries of what may be millions, and how many there were. */
export class BoundedList<T> {
  readonly held: T[] = [];
  readonly #heldMax: number;
  #count = 0;

  constructor(heldMax: number) {
    this.#heldMax = heldMax;
  }

  /** All that were added. */
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
