import { damaged, type Device, isWithin } from './device.ts';
import { asBuffer } from '../base/index.ts';

export interface Partition {
  /** Counted from 1, as in Linux. */
  readonly number: number;
  readonly startBytes: number;
  readonly sizeBytes: number;
}

/** UEFI 2.10, chapter 5: both sector sizes are in use. */
const SECTORS = [512, 4096] as const;
const GPT_SIGNATURE = Buffer.from('EFI PART');
const GPT_ENTRIES_MAX = 1024;
const GPT_ENTRY_BYTES_MAX = 4096;

/** Sorted by number; undefined without a table. Throws `DEVICE_DAMAGED` and device errors. */
export async function partitionsOf(
  device: Device,
  start: Buffer,
  signal: AbortSignal,
): Promise<readonly Partition[] | undefined> {
  for (const sectorBytes of SECTORS) {
    const header = start.subarray(sectorBytes, sectorBytes + 512);
    if (header.length < 512 || !header.subarray(0, 8).equals(GPT_SIGNATURE)) continue;
    return gptPartitions(device, { header, sectorBytes }, signal);
  }
  return isMbr(start) ? await mbrPartitions(device, start, signal) : undefined;
}

async function gptPartitions(
  device: Device,
  { header, sectorBytes }: { readonly header: Buffer; readonly sectorBytes: number },
  signal: AbortSignal,
): Promise<Partition[]> {
  const offset = Number(header.readBigUInt64LE(72)) * sectorBytes;
  const count = header.readUInt32LE(80);
  const entryBytes = header.readUInt32LE(84);
  const isPossible = entryBytes >= 128 && entryBytes <= GPT_ENTRY_BYTES_MAX;
  if (!isPossible || count > GPT_ENTRIES_MAX || !isWithin(device, offset, count * entryBytes)) {
    throw damaged(`its partition table has ${count} entries of ${entryBytes} bytes`);
  }
  const bytes = asBuffer(await device.read(offset, count * entryBytes, signal));
  const partitions: Partition[] = [];
  for (let at = 0; at < count; at++) {
    const entry = bytes.subarray(at * entryBytes, (at + 1) * entryBytes);
    if (entry.subarray(0, 16).every((byte) => byte === 0)) continue;
    const first = Number(entry.readBigUInt64LE(32));
    const last = Number(entry.readBigUInt64LE(40));
    add(partitions, device, at + 1, [first * sectorBytes, (last - first + 1) * sectorBytes]);
  }
  return partitions;
}

const TABLE = 446;
const ENTRY_BYTES = 16;
const EXTENDED = new Set([0x05, 0x0f, 0x85]);
/** The limit of Linux for one device. */
const LOGICAL_MAX = 251;
const SECTOR_BYTES = 512;

/** A file system's boot sector has the same last two bytes, but no partition entries. */
function isMbr(start: Buffer): boolean {
  if (start.length < 512 || start.readUInt16LE(510) !== 0xaa55) return false;
  const entries = entriesOf(start);
  const isPlain = entries.every(({ status }) => status === 0 || status === 0x80);
  return isPlain && entries.some(({ type, sectors }) => type !== 0 && sectors > 0);
}

interface MbrEntry {
  readonly status: number;
  readonly type: number;
  readonly first: number;
  readonly sectors: number;
}

const entriesOf = (sector: Buffer): MbrEntry[] =>
  Array.from({ length: 4 }, (_, index) => {
    const at = TABLE + index * ENTRY_BYTES;
    return {
      status: sector.readUInt8(at),
      type: sector.readUInt8(at + 4),
      first: sector.readUInt32LE(at + 8),
      sectors: sector.readUInt32LE(at + 12),
    };
  });

async function mbrPartitions(
  device: Device,
  start: Buffer,
  signal: AbortSignal,
): Promise<Partition[]> {
  const partitions: Partition[] = [];
  let extended: MbrEntry | undefined;
  for (const [index, entry] of entriesOf(start).entries()) {
    if (entry.type === 0 || entry.sectors === 0) continue;
    if (EXTENDED.has(entry.type)) extended ??= entry;
    else add(partitions, device, index + 1, inBytes(entry.first, entry.sectors));
  }
  if (!extended) return partitions;
  // Logical partitions form a chain. Each link has one partition and the position of the next link.
  let link = extended.first;
  for (let number = 5; number < 5 + LOGICAL_MAX; number++) {
    signal.throwIfAborted();
    if (!isWithin(device, link * SECTOR_BYTES, SECTOR_BYTES)) {
      throw damaged(`its partition table goes on at sector ${link}, beyond the end`);
    }
    const sector = asBuffer(await device.read(link * SECTOR_BYTES, SECTOR_BYTES, signal));
    const [own, next] = entriesOf(sector);
    if (sector.readUInt16LE(510) !== 0xaa55 || !own || !next) break;
    if (own.type !== 0 && own.sectors > 0) {
      add(partitions, device, number, inBytes(link + own.first, own.sectors));
    }
    if (next.type === 0 || next.sectors === 0) break;
    link = extended.first + next.first;
  }
  return partitions;
}

const inBytes = (first: number, sectors: number): [number, number] => [
  first * SECTOR_BYTES,
  sectors * SECTOR_BYTES,
];

/** Throws `DEVICE_DAMAGED` if the partition is not within the device. */
function add(
  partitions: Partition[],
  device: Device,
  number: number,
  [startBytes, sizeBytes]: readonly [number, number],
): void {
  if (sizeBytes <= 0 || !isWithin(device, startBytes, sizeBytes)) {
    throw damaged(`partition ${number} is not within the device`);
  }
  partitions.push({ number, startBytes, sizeBytes });
}
