import { fstatSync } from 'node:fs';
import { statfs } from 'node:fs/promises';
import { pinnedPath } from '../base/index.ts';

/**
 * File systems that never call written bytes a hole: ext2 to ext4, XFS and tmpfs, as statfs names
 * them. OpenZFS before 2.2.2 did so for bytes that were not on the disk yet. File systems of a
 * network tell what their server says.
 */
const RELIABLE: readonly number[] = [0xef53, 0x58_46_53_42, 0x01_02_19_94];

/** Which file systems are believed when they tell where a file has holes. Asked once for each. */
export class Holes {
  readonly #isReliable = new Map<number, boolean>();

  /** `device` is the file's, as stat tells it. */
  async areReliable(descriptor: number, device = fstatSync(descriptor).dev): Promise<boolean> {
    const known = this.#isReliable.get(device);
    if (known !== undefined) return known;
    const isReliable = await statfs(pinnedPath(descriptor)).then(
      ({ type }) => RELIABLE.includes(type),
      () => false,
    );
    this.#isReliable.set(device, isReliable);
    return isReliable;
  }
}
