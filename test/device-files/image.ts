import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { gunzipSync } from 'node:zlib';
import type { Device, DeviceFile } from '../../src/device-files/index.ts';

const GOLDEN = join(import.meta.dirname, '../golden/ext4');
export const never = new AbortController().signal;

export const treeText = (): string => readFileSync(join(GOLDEN, 'tree.txt'), 'latin1');

export function imageOf(name: string): Buffer {
  return gunzipSync(readFileSync(join(GOLDEN, `${name}.gz`)));
}

/** Bytes in memory as a device. Counts the reads. */
export class MemoryDevice implements Device {
  readonly bytes: Buffer;
  reads = 0;
  bytesRead = 0;

  constructor(bytes: Buffer) {
    this.bytes = bytes;
  }

  get sizeBytes(): number {
    return this.bytes.length;
  }

  read(offset: number, lengthBytes: number): Promise<Uint8Array> {
    this.reads++;
    this.bytesRead += lengthBytes;
    if (offset < 0 || offset + lengthBytes > this.sizeBytes) throw new Error('beyond the end');
    return Promise.resolve(this.bytes.subarray(offset, offset + lengthBytes));
  }
}

/** Throws where it is not there. */
export async function fileAt(root: DeviceFile, path: string): Promise<DeviceFile> {
  let file = root;
  for (const name of path.split('/').filter((each) => each !== '')) {
    const next = await file.find({ name }, never);
    if (!next) throw new Error(`there is no ${path}`);
    file = next;
  }
  return file;
}

/** All bytes, up to a bound. */
export async function bytesOf(file: DeviceFile, bytesMax = 64 << 20): Promise<Buffer> {
  const parts: Uint8Array[] = [];
  let length = 0;
  for await (const part of file.bytes(never)) {
    parts.push(part);
    length += part.length;
    if (length >= bytesMax) break;
  }
  return Buffer.concat(parts);
}

export async function namesIn(file: DeviceFile): Promise<string[]> {
  const names: string[] = [];
  for await (const batch of file.list(never)) names.push(...batch.map(({ name }) => name));
  return names;
}
