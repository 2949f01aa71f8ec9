import { isUtf8 } from 'node:buffer';
import { asBuffer, assert } from '../../base/index.ts';

/** Tar (POSIX.1-2001, "ustar" and "pax") as written by Go's archive/tar, which Velero uses. */
export const BLOCK_BYTES = 512;
const NAME = { at: 0, length: 100 };
const MODE = { at: 100, length: 8 };
const UID = { at: 108, length: 8 };
const GID = { at: 116, length: 8 };
const SIZE = { at: 124, length: 12 };
const MTIME = { at: 136, length: 12 };
const CHECKSUM = { at: 148, length: 8 };
const TYPE_AT = 156;
const LINK = { at: 157, length: 100 };
const MAGIC_AT = 257;
const DEV_MAJOR = { at: 329, length: 8 };
const DEV_MINOR = { at: 337, length: 8 };
const PREFIX = { at: 345, length: 155 };
/** Eleven octal digits. */
const SIZE_MAX = 0o77777777777;
/** Seven octal digits. */
const ID_MAX = 0o7777777;
const PAX = 'x';

export interface TarHeader {
  readonly name: string;
  readonly size: number;
  readonly mode: number;
  /** Seconds since 1970. */
  readonly mtime: number;
  /** `0` for a file, `2` for a symbolic link, `5` for a directory. */
  readonly type: string;
}

/** An entry of a volume, with values of any length. */
export interface FullTarHeader extends Omit<TarHeader, 'name'> {
  /** Bytes if the name is not UTF-8. The same holds for the link. */
  readonly name: string | Uint8Array;
  readonly uid: number;
  readonly gid: number;
  /** The target of a symbolic link. */
  readonly linkName?: string | Uint8Array | undefined;
  /** Instead of whole seconds. */
  readonly mtimeNs: bigint;
}

/** Encodes one block, or three if the name does not fit: a pax record with the name comes first. */
export function encodeHeader(header: TarHeader): Buffer {
  assert(header.size <= SIZE_MAX, 'an entry of 8 GiB or more');
  const split = splitName(header.name);
  if (split) return block(header, split);
  const body = paxRecord('path', header.name);
  const [, directory = '', file = ''] = /^(.*\/)?([^/]*)$/.exec(header.name) ?? [];
  const pax = { size: body.length, mode: 0, mtime: 0, type: PAX };
  const name = cut(`${directory}PaxHeaders.0/${file}`);
  return Buffer.concat([
    block(pax, { name, prefix: '' }),
    padded(body),
    block(header, { name: cut(header.name), prefix: '' }),
  ]);
}

/** Encodes a block, after a pax record with values that do not fit, such as nanoseconds. */
export function encodeFullHeader(header: FullTarHeader): Buffer {
  const { uid, gid, size, mtimeNs } = header;
  const nameBytes = Buffer.from(header.name as string);
  const linkBytes = Buffer.from((header.linkName ?? '') as string);
  const [name, linkName] = [nameBytes.toString('latin1'), linkBytes.toString('latin1')];
  const seconds = Number(mtimeNs / 1_000_000_000n);
  const isPlainTime = mtimeNs % 1_000_000_000n === 0n && seconds >= 0 && seconds <= SIZE_MAX;
  const split = splitName(name);
  const isPlainLink = /^[ -~]*$/.test(linkName) && linkName.length <= LINK.length;
  const records = [
    // Marks bytes that are not UTF-8 (POSIX.1-2024, pax).
    ...(isUtf8(nameBytes) && isUtf8(linkBytes) ? [] : [paxRecord('hdrcharset', 'BINARY')]),
    ...(split ? [] : [paxRecord('path', nameBytes)]),
    ...(isPlainLink ? [] : [paxRecord('linkpath', linkBytes)]),
    ...(size <= SIZE_MAX ? [] : [paxRecord('size', String(size))]),
    ...(uid <= ID_MAX ? [] : [paxRecord('uid', String(uid))]),
    ...(gid <= ID_MAX ? [] : [paxRecord('gid', String(gid))]),
    ...(isPlainTime ? [] : [paxRecord('mtime', decimalSeconds(mtimeNs))]),
  ];
  const fields = {
    ...header,
    size: size <= SIZE_MAX ? size : 0,
    mtime: Math.min(Math.max(seconds, 0), SIZE_MAX),
    uid: uid <= ID_MAX ? uid : 0,
    gid: gid <= ID_MAX ? gid : 0,
    linkName: isPlainLink ? linkName : cut(linkName),
  };
  const own = block(fields, split ?? { name: cut(name), prefix: '' });
  if (records.length === 0) return own;
  const body = Buffer.concat(records);
  const pax = { size: body.length, mode: 0o644, mtime: 0, type: PAX };
  const paxName = { name: 'PaxHeaders.0/entry', prefix: '' };
  return Buffer.concat([block(pax, paxName), padded(body), own]);
}

/** `-1.5` for one and a half seconds before 1970. */
function decimalSeconds(ns: bigint): string {
  const digits = String(ns < 0n ? -ns : ns).padStart(10, '0');
  return `${ns < 0n ? '-' : ''}${digits.slice(0, -9)}.${digits.slice(-9)}`;
}

/** Pads bytes to the end of a block. */
export function padded(bytes: Uint8Array): Buffer {
  const rest = padding(bytes.length);
  return rest.length === 0 ? asBuffer(bytes) : Buffer.concat([bytes, rest]);
}

/** The padding after `length` bytes. */
export const padding = (length: number): Buffer =>
  Buffer.alloc((BLOCK_BYTES - (length % BLOCK_BYTES)) % BLOCK_BYTES);

/** The end of an archive. */
export const END = Buffer.alloc(2 * BLOCK_BYTES);

/** The name for readers without pax. */
const cut = (name: string): string =>
  name
    .replaceAll(/[^ -~]/g, '')
    .slice(0, NAME.length)
    .replace(/\/+$/, '');

/** A ustar name: at most 100 bytes, or two parts at a slash. Undefined if it does not fit. */
function splitName(name: string): { name: string; prefix: string } | undefined {
  if (!/^[ -~]*$/.test(name)) return undefined;
  if (name.length <= NAME.length) return { name, prefix: '' };
  // As Go: the last slash at which the prefix fits.
  const at = name.slice(0, PREFIX.length + 1).lastIndexOf('/');
  const rest = name.slice(at + 1);
  if (at <= 0 || rest === '' || rest.length > NAME.length) return undefined;
  return { name: rest, prefix: name.slice(0, at) };
}

/**
 * `23 path=…
 * `: the length counts itself.
 */
function paxRecord(key: string, value: string | Uint8Array): Buffer {
  const bytes = Buffer.from(value as string);
  const rest = ` ${key}=\n`.length + bytes.length;
  let length = rest + String(rest).length;
  if (String(length).length > String(rest).length) length = rest + String(length).length;
  return Buffer.concat([Buffer.from(`${length} ${key}=`), bytes, Buffer.from('\n')]);
}

function block(
  header: Omit<TarHeader, 'name'> & { uid?: number; gid?: number; linkName?: string },
  { name, prefix }: { name: string; prefix: string },
): Buffer {
  const bytes = Buffer.alloc(BLOCK_BYTES);
  bytes.write(name, NAME.at, 'latin1');
  writeOctal(bytes, MODE, header.mode);
  writeOctal(bytes, UID, header.uid ?? 0);
  writeOctal(bytes, GID, header.gid ?? 0);
  writeOctal(bytes, SIZE, header.size);
  writeOctal(bytes, MTIME, header.mtime);
  bytes.write(header.type, TYPE_AT, 'latin1');
  bytes.write(header.linkName ?? '', LINK.at, 'latin1');
  bytes.write('ustar\0' + '00', MAGIC_AT, 'latin1');
  if (header.type !== PAX) {
    writeOctal(bytes, DEV_MAJOR, 0);
    writeOctal(bytes, DEV_MINOR, 0);
  }
  bytes.write(prefix, PREFIX.at, 'latin1');
  bytes.write(`${sumOf(bytes).toString(8).padStart(6, '0')}\0 `, CHECKSUM.at, 'latin1');
  return bytes;
}

function writeOctal(
  bytes: Buffer,
  { at, length }: { at: number; length: number },
  value: number,
): void {
  bytes.write(`${value.toString(8).padStart(length - 1, '0')}\0`, at, 'latin1');
}

/** Counts blanks in place of the checksum itself. */
function sumOf(bytes: Uint8Array): number {
  let sum = 0;
  for (let at = 0; at < BLOCK_BYTES; at++) {
    const isSum = at >= CHECKSUM.at && at < CHECKSUM.at + CHECKSUM.length;
    sum += isSum ? 32 : (bytes[at] ?? 0);
  }
  return sum;
}

export const isZero = (bytes: Uint8Array): boolean => bytes.every((byte) => byte === 0);

/** Decodes a block; undefined if its checksum is wrong or a number is invalid. */
export function decodeHeader(bytes: Buffer): TarHeader | undefined {
  const sum = octal(bytes, CHECKSUM);
  const size = octal(bytes, SIZE);
  if (sum !== sumOf(bytes) || size === undefined) return undefined;
  const isUstar = bytes.toString('latin1', MAGIC_AT, MAGIC_AT + 6) === 'ustar\0';
  const prefix = isUstar ? text(bytes, PREFIX) : '';
  const name = text(bytes, NAME);
  return {
    name: prefix === '' ? name : `${prefix}/${name}`,
    size,
    mode: octal(bytes, MODE) ?? 0,
    mtime: octal(bytes, MTIME) ?? 0,
    type: bytes.toString('latin1', TYPE_AT, TYPE_AT + 1),
  };
}

function text(bytes: Buffer, { at, length }: { at: number; length: number }): string {
  const field = bytes.subarray(at, at + length);
  const end = field.indexOf(0);
  return field.toString('utf8', 0, end === -1 ? length : end);
}

/** Octal digits, or binary if the first bit is set (GNU). Undefined beyond 2^53. */
function octal(bytes: Buffer, { at, length }: { at: number; length: number }): number | undefined {
  const field = bytes.subarray(at, at + length);
  const first = field[0] ?? 0;
  if (first === 0x80) {
    const value = field.subarray(1).reduce((sum, byte) => sum * 256 + byte, 0);
    return Number.isSafeInteger(value) ? value : undefined;
  }
  const digits = field.toString('latin1').replaceAll(/^[ \0]+|[ \0]+$/g, '');
  if (digits === '') return 0;
  return /^[0-7]+$/.test(digits) ? Number.parseInt(digits, 8) : undefined;
}

/** The records of a pax header; undefined if they are invalid. */
export function decodePax(body: Buffer): Map<string, string> | undefined {
  const records = new Map<string, string>();
  for (let at = 0; at < body.length;) {
    const blank = body.indexOf(32, at);
    const digits = blank === -1 ? '' : body.toString('latin1', at, blank);
    const length = /^[1-9]\d{0,8}$/.test(digits) ? Number(digits) : 0;
    const end = at + length;
    if (length === 0 || end > body.length || body[end - 1] !== 10) return undefined;
    const record = body.toString('utf8', blank + 1, end - 1);
    const equals = record.indexOf('=');
    if (equals <= 0) return undefined;
    records.set(record.slice(0, equals), record.slice(equals + 1));
    at = end;
  }
  return records;
}
