import { fstatSync } from 'node:fs';
import { statfs } from 'node:fs/promises';
import { pinnedPath } from '../../base/index.ts';

/**
 * File systems that never report written bytes as a hole: ext2 to ext4, XFS and tmpfs, by statfs
 * type. OpenZFS before 2.2.2 did so for unflushed bytes. Network file systems depend on their
 * server.
 */
const RELIABLE: readonly number[] = [0xef53, 0x58_46_53_42, 0x01_02_19_94];

/** Whether a file system's reports of holes are reliable. Checked once for each. */
export class HoleReports {
  readonly #isReliable = new Map<number, boolean>();

  /** `device` is the file's, from stat. */
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
