import { isUtf8 } from 'node:buffer';
import { lstatSync } from 'node:fs';
import { CodedError, type FileStatus, pinnedPath, posix, systemCode } from '../base/index.ts';

/**
 * Attributes of a directory entry that have no field in Kopia. The text is one JSON object, which
 * Kopia and Velero ignore. Directories without such attributes are byte for byte Kopia's.
 */
export interface ExtraAttributes {
  /** Extended attributes by name. Names are percent-encoded unless plain ASCII. */
  readonly xattrs?: Readonly<Record<string, string>>;
  /** Equal for all names of one file: the inode, and its device if it is not the root's device. */
  readonly link?: string;
  /** Bytes of a name that is not UTF-8. */
  readonly rawName?: string;
  /** The entry is a FIFO or a device node. Kopia sees an empty file. */
  readonly node?: string;
}

/** A FIFO or a device node as `mknod` makes it. */
export interface SpecialNode {
  readonly kind: 'fifo' | 'char' | 'block';
  /** 0 for a FIFO. */
  readonly device: bigint;
}

/** The extra attributes that a backup keeps. */
export interface KeptExtras {
  readonly xattrs: boolean;
  readonly links: boolean;
}

export interface ExtraRules extends KeptExtras {
  /** Device of the root. */
  readonly device: bigint;
}

/** The open directory of the entries. */
export interface ExtraPlace {
  readonly descriptor: number;
  readonly rules: ExtraRules | undefined;
}

/** Other attributes belong to the system: `security.ima`, `system.nfs4_acl`, `btrfs.*`. */
const KEPT_PREFIXES = ['user.', 'trusted.'];
export const CAPABILITY = 'security.capability';
/** The access list that new entries of a directory get. */
export const DEFAULT_LIST = 'system.posix_acl_default';
const ACCESS_LISTS = ['system.posix_acl_access', DEFAULT_LIST];
const KEPT_NAMES = [CAPABILITY, 'security.selinux', ...ACCESS_LISTS];
/** Names and values of one entry. Linux allows 64 KiB for a value. Our choice. */
const EXTRA_BYTES_MAX = 1 << 20;
const VALUE_BYTES_MAX = 64 << 10;
const NAME_BYTES_MAX = 255;
/** Characters without JSON escapes or braces, so a reader finds the end by counting braces. */
const PLAIN = /^[!#$'-;=?-[\]-z|~]*$/;
const BASE64 = /^[\w+/]*=*$/;
const REGULAR = 0o100000;
const DIRECTORY = 0o040000;
const TYPE_MASK = 0o170000;

/** An entry without an access list, or a file system without any. */
const NO_LIST = ['ENODATA', 'EOPNOTSUPP', 'ENOTSUP'];

/**
 * Files and directories of each device that returned "not supported" before any entry had a list. A
 * FUSE or network file server may return it for some entries only. Minus infinity after a list.
 */
const refusals = new Map<bigint, number>();
/** After so many refusals, other entries of the device are skipped. Our choice. */
const REFUSALS_MAX = 256;

/**
 * The text for an entry of an open directory; undefined if it has only Kopia's fields. `name` is
 * bytes with a zero at the end. Throws like `fs`, and `ATTRIBUTES_TOO_LARGE`.
 */
export function readExtra(
  { descriptor, rules }: ExtraPlace,
  name: Uint8Array,
  status: Pick<FileStatus, 'mode' | 'links' | 'inode' | 'device'>,
): string | undefined {
  const rawName = name.subarray(0, -1);
  const parts: string[] = [];
  if (rules?.xattrs === true && (refusals.get(status.device) ?? 0) < REFUSALS_MAX) {
    const xattrs = readXattrs(descriptor, name, status);
    if (xattrs !== '') parts.push(`"xattrs":{${xattrs}}`);
  }
  if (rules?.links === true && status.links > 1 && (status.mode & TYPE_MASK) === REGULAR) {
    const device = status.device === rules.device ? '' : `@${status.device}`;
    parts.push(`"link":"${status.inode}${device}"`);
  }
  const kind = rules && NODE_KINDS[status.mode & TYPE_MASK];
  if (kind) parts.push(`"node":"${nodeText(descriptor, name, kind)}"`);
  if (!isUtf8(rawName)) parts.push(`"rawName":"${Buffer.from(rawName).toString('base64')}"`);
  return parts.length === 0 ? undefined : `{${parts.join(',')}}`;
}

const NODE_KINDS: Readonly<Record<number, SpecialNode['kind']>> = {
  0o010000: 'fifo',
  0o020000: 'char',
  0o060000: 'block',
};

/** Opens nothing, because opening a FIFO would wait for its other end. */
function nodeText(descriptor: number, name: Uint8Array, kind: SpecialNode['kind']): string {
  if (kind === 'fifo') return kind;
  const path = Buffer.concat([Buffer.from(`${pinnedPath(descriptor)}/`), name.subarray(0, -1)]);
  return `${kind}:${lstatSync(path, { bigint: true }).rdev}`;
}

/** Undefined for other entries than FIFOs and device nodes. Throws `BAD_ATTRIBUTES`. */
export function nodeIn(text: string | undefined): SpecialNode | undefined {
  if (text?.includes('"node":') !== true) return undefined;
  const { node } = parseExtra(text);
  if (node === undefined) return undefined;
  const [kind, device = '0'] = node.split(':');
  return { kind: kind as SpecialNode['kind'], device: BigInt(device) };
}

function readXattrs(
  descriptor: number,
  name: Uint8Array,
  { device, mode }: Pick<FileStatus, 'device' | 'mode'>,
): string {
  const calls = posix().attributes;
  const list = calls?.listIn(descriptor, name);
  const refused = refusals.get(device) ?? 0;
  if (!list) {
    // Many servers support attributes of files, and none of links and special files.
    const type = mode & TYPE_MASK;
    if (type === REGULAR || type === DIRECTORY) refusals.set(device, refused + 1);
    return '';
  }
  if (refused >= 0) refusals.set(device, Number.NEGATIVE_INFINITY);
  if (list.length === 0) return '';
  // Copied, because the next call may reuse its memory.
  const found = splitNames(Buffer.from(list))
    .filter(isKept)
    .sort((a, b) => a.compare(b));
  let bytes = 0;
  const fields = found.flatMap((attribute) => {
    const value = calls?.getIn(descriptor, name, withZero(attribute));
    if (!value) return [];
    bytes += attribute.length + value.length;
    if (bytes > EXTRA_BYTES_MAX) throw tooLarge();
    return `"${encodeName(attribute)}":"${Buffer.from(value).toString('base64')}"`;
  });
  return fields.join(',');
}

const tooLarge = (): CodedError =>
  new CodedError('ATTRIBUTES_TOO_LARGE', 'its extended attributes are larger than 1 MiB');

function splitNames(list: Buffer): Buffer[] {
  const names: Buffer[] = [];
  for (let at = 0; at < list.length;) {
    const end = list.indexOf(0, at);
    names.push(list.subarray(at, end));
    at = end + 1;
  }
  return names;
}

const isKept = (attribute: Uint8Array): boolean => isKeptName(Buffer.from(attribute).toString());

function isKeptName(name: string): boolean {
  return KEPT_NAMES.includes(name) || KEPT_PREFIXES.some((prefix) => name.startsWith(prefix));
}

const withZero = (bytes: Uint8Array): Buffer => Buffer.concat([bytes, ZERO]);
const ZERO = Buffer.of(0);

function encodeName(name: Buffer): string {
  const text = name.toString('latin1');
  if (PLAIN.test(text)) return text;
  return Array.from(name, (byte) => {
    const char = String.fromCharCode(byte);
    return PLAIN.test(char) ? char : `%${byte.toString(16).padStart(2, '0')}`;
  }).join('');
}

const decodeName = (text: string): Buffer =>
  Buffer.from(
    text.replaceAll(/%([0-9a-f]{2})/g, (_all, hex: string) =>
      String.fromCharCode(Number.parseInt(hex, 16)),
    ),
    'latin1',
  );

/** The text without some extended attributes. An invalid text stays: the restore rejects it. */
export function withoutXattrs(
  text: string | undefined,
  isLeftOut: (name: string) => boolean,
): string | undefined {
  if (text === undefined) return undefined;
  let parsed: ExtraAttributes;
  try {
    parsed = parseExtra(text);
  } catch {
    return text;
  }
  const { xattrs = {}, ...rest } = parsed;
  const kept = Object.entries(xattrs).filter(([name]) => !isLeftOut(name));
  return JSON.stringify({ ...(kept.length > 0 && { xattrs: Object.fromEntries(kept) }), ...rest });
}

/** The text of the extended attributes of an open file or directory. Throws like `fs`. */
export function readExtraOf(descriptor: number): string | undefined {
  const calls = posix().attributes;
  const found = splitNames(Buffer.from(calls?.listOf(descriptor) ?? [])).filter(isKept);
  const fields = found.flatMap((attribute) => {
    const value = calls?.getOf(descriptor, withZero(attribute));
    return value ? `"${encodeName(attribute)}":"${Buffer.from(value).toString('base64')}"` : [];
  });
  return fields.length === 0 ? undefined : `{"xattrs":{${fields.join(',')}}}`;
}

/** Checks all of it: anyone with write access may have changed it. Throws `BAD_ATTRIBUTES`. */
export function parseExtra(text: string | undefined): ExtraAttributes {
  if (text === undefined) return {};
  if (text.length > 2 * EXTRA_BYTES_MAX) throw badAttributes('they are too large');
  let raw: unknown;
  try {
    raw = JSON.parse(text);
  } catch {
    throw badAttributes('they are not JSON');
  }
  if (typeof raw !== 'object' || raw === null || Array.isArray(raw)) {
    throw badAttributes('they are not an object');
  }
  const { xattrs, link, rawName, node } = raw as Record<string, unknown>;
  const isNode = typeof node === 'string' && /^(fifo|(char|block):\d{1,19})$/.test(node);
  if (node !== undefined && !isNode) throw badAttributes('the kind of a node');
  if (link !== undefined && !(typeof link === 'string' && /^\d{1,20}(@\d{1,20})?$/.test(link))) {
    throw badAttributes('the group of hard links');
  }
  if (rawName !== undefined && !isRawName(rawName)) throw badAttributes('the name');
  return {
    ...(xattrs !== undefined && { xattrs: parseXattrs(xattrs) }),
    ...(link !== undefined && { link }),
    ...(rawName !== undefined && { rawName }),
    ...(isNode && { node }),
  };
}

/** A name in UTF-8 must not have bytes beside it: they could name another entry. */
function isRawName(value: unknown): value is string {
  if (typeof value !== 'string' || !BASE64.test(value)) return false;
  const bytes = Buffer.from(value, 'base64');
  return bytes.length <= NAME_BYTES_MAX && !isUtf8(bytes);
}

/** A root entry's note about all entries of its snapshot, such as `xattrs`. */
export const recordedIn = (text: string | undefined): string =>
  /"recorded":"([a-z,]*)"\}$/.exec(text ?? '')?.[1] ?? '';

/** Adds such a note at the end of the text. */
export function withNote(text: string | undefined, recorded: string): string {
  const own = text === undefined || text === '{}' ? '' : `${text.slice(1, -1)},`;
  return `{${own}"recorded":"${recorded}"}`;
}

/** The bytes of a name that is not UTF-8; undefined for other names. Throws `BAD_ATTRIBUTES`. */
export function rawNameIn(text: string | undefined): Buffer | undefined {
  if (text?.includes('"rawName":') !== true) return undefined;
  const { rawName } = parseExtra(text);
  return rawName === undefined ? undefined : Buffer.from(rawName, 'base64');
}

/** The text without the bytes of the name, which differ between names of one file. */
export function withoutRawName(text: string | undefined): string | undefined {
  if (text?.includes('"rawName":') !== true) return text;
  return JSON.stringify({ ...parseExtra(text), rawName: undefined });
}

function parseXattrs(raw: unknown): Readonly<Record<string, string>> {
  if (typeof raw !== 'object' || raw === null || Array.isArray(raw)) {
    throw badAttributes('the list of extended attributes');
  }
  for (const [name, value] of Object.entries(raw)) {
    const bytes = decodeName(name);
    const isName = isKept(bytes) && bytes.length <= NAME_BYTES_MAX && !bytes.includes(0);
    if (!isName) throw badAttributes(`the name ${JSON.stringify(name.slice(0, 80))}`);
    const isValue =
      typeof value === 'string' &&
      BASE64.test(value) &&
      Buffer.byteLength(value, 'base64') <= VALUE_BYTES_MAX;
    if (!isValue) throw badAttributes(`the value of ${JSON.stringify(name)}`);
  }
  return raw as Record<string, string>;
}

const badAttributes = (what: string): CodedError =>
  new CodedError('BAD_ATTRIBUTES', `the snapshot holds attributes that are not valid: ${what}`);

interface ExtraToApply {
  readonly extra?: string | undefined;
  readonly dropsLists?: boolean | undefined;
  readonly isExact?: boolean | undefined;
}

/**
 * Sets the extended attributes of an open file, and may remove inherited access lists. Call it
 * after setting the owner, because that drops capabilities. Call it before setting the mode,
 * because an access list holds part of the mode. Returns whether all could be set. Throws
 * `BAD_ATTRIBUTES`.
 */
export function applyExtra(
  descriptor: number,
  { extra, dropsLists = false, isExact = false }: ExtraToApply,
  isOwned: boolean,
): boolean {
  const { xattrs = {} } = parseExtra(extra);
  const calls = posix().attributes;
  let isAllSet = true;
  const dropped = isExact ? surplusOf(descriptor, xattrs) : dropsLists ? ACCESS_LISTS : [];
  for (const name of dropped) {
    if (Object.hasOwn(xattrs, name)) continue;
    try {
      calls?.remove(descriptor, withZero(decodeName(name)));
    } catch (error) {
      if (!NO_LIST.includes(systemCode(error) ?? '')) isAllSet = false;
    }
  }
  for (const [name, value] of Object.entries(xattrs)) {
    try {
      // A program of another owner must not get capabilities.
      if (name === CAPABILITY && !isOwned) isAllSet = false;
      else if (!calls) isAllSet = false;
      else calls.set(descriptor, withZero(decodeName(name)), Buffer.from(value, 'base64'));
    } catch {
      // Also ENOSPC: ext4 returns it if the attributes have no room beside the inode.
      isAllSet = false;
    }
  }
  return isAllSet;
}

/**
 * Attributes that an entry has and a snapshot lacks. Labels and `trusted.*` do not count, because
 * the system or the file system sets them.
 */
function surplusOf(descriptor: number, xattrs: Readonly<Record<string, string>>): string[] {
  const list = posix().attributes?.listOf(descriptor);
  if (!list || list.length === 0) return [];
  return splitNames(Buffer.from(list))
    .map(encodeName)
    .filter((name) => name.startsWith('user.') || SURPLUS_NAMES.includes(name))
    .filter((name) => !Object.hasOwn(xattrs, name));
}

const SURPLUS_NAMES = [CAPABILITY, ...ACCESS_LISTS];

/** Whether an open file has these extended attributes. With `isExact`, it must have no others. */
export function hasExtra(descriptor: number, text: string | undefined, isExact: boolean): boolean {
  const { xattrs } = parseExtra(text);
  if (isExact && surplusOf(descriptor, xattrs ?? {}).length > 0) return false;
  if (!xattrs) return true;
  const calls = posix().attributes;
  return Object.entries(xattrs).every(([name, value]) => {
    const found = calls?.getOf(descriptor, withZero(decodeName(name)));
    return found !== undefined && Buffer.from(value, 'base64').equals(found);
  });
}
