import { tmpdir } from 'node:os';
import { CodedError } from '../../base/index.ts';
import type { IndexEntry } from '../index/entry.ts';
import type { IndexBody } from '../index/index-body.ts';

const PRIME = 0x01000193;

/** Number of entries, and two sums over them that are independent of order. */
class RowSum {
  count = 0;
  #low = 0;
  #high = 0;
  /** Hashes of pack names, which recur in many entries. */
  readonly #packs = new Map<string, number>();

  add(entry: IndexEntry): void {
    let pack = this.#packs.get(entry.packBlobId);
    if (pack === undefined) this.#packs.set(entry.packBlobId, (pack = hashText(entry.packBlobId)));
    let hash = mix(hashText(entry.contentId), pack);
    hash = mix(hash, entry.packOffset);
    hash = mix(hash, entry.packedLength);
    hash = mix(hash, entry.originalLength);
    hash = mix(hash, entry.timestampSeconds);
    hash = mix(hash, entry.timestampSeconds / 2 ** 32);
    hash = mix(hash, entry.formatVersion * 2 + (entry.deleted ? 1 : 0));
    hash = mix(hash, entry.compressionHeaderId);
    hash = mix(hash, entry.encryptionKeyId);
    this.count++;
    this.#low = (this.#low + hash) >>> 0;
    this.#high = (this.#high + mix(hash, pack ^ 0x5bd1e995)) >>> 0;
  }

  addAll(body: IndexBody): void {
    const rows = body.rows();
    while (rows.next()) this.add(rows.entry);
  }

  /** Whether this equals `whole` without `part`. */
  isDifference(whole: RowSum, part: RowSum): boolean {
    return (
      this.count === whole.count - part.count &&
      this.#low === (whole.#low - part.#low) >>> 0 &&
      this.#high === (whole.#high - part.#high) >>> 0
    );
  }
}

function hashText(text: string): number {
  let hash = 0x811c9dc5;
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), PRIME);
  return hash >>> 0;
}

function mix(hash: number, value: number): number {
  const mixed = Math.imul(hash ^ value, 0x9e3779b1);
  return (mixed ^ (mixed >>> 15)) >>> 0;
}

/**
 * Checks that a compaction holds all entries of its inputs except the dropped ones. Merged rows
 * pass through memory and scratch files. A loss there would be permanent, because the inputs are
 * deleted later.
 */
export class CompactionSums {
  readonly #inputs = new RowSum();
  readonly #dropped = new RowSum();
  readonly #outputs = new RowSum();

  addInput(body: IndexBody): void {
    this.#inputs.addAll(body);
  }

  /** Records an entry that is replaced by a newer entry of its content, or dropped. */
  drop(entry: IndexEntry): void {
    this.#dropped.add(entry);
  }

  /** Pass the encoded output just before its put. */
  addOutput(body: IndexBody): void {
    this.#outputs.addAll(body);
  }

  /** `of` names the index in the error. Throws `COMPACTION_MISMATCH`. */
  assertEqual(of: string): void {
    if (this.#outputs.isDifference(this.#inputs, this.#dropped)) return;
    const wanted = this.#inputs.count - this.#dropped.count;
    const text = `the compacted index ${of} has ${this.#outputs.count} entries that differ from the ${wanted} of its inputs, so it was not used`;
    throw new CodedError(
      'COMPACTION_MISMATCH',
      `${text}; check the memory of this machine and the disk of ${tmpdir()}, then run maintenance again`,
    );
  }
}
