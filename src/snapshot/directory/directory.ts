import { z } from 'zod';
import {
  asBuffer,
  CodedError,
  compareUtf8,
  formatGoTime,
  goString,
  type Nanoseconds,
  parseGoTime,
  parseJsonLossless,
} from '../../base/index.ts';
import {
  DIRECTORY_STREAM,
  entryHead,
  type EntryHead,
  extraField,
  GO_FLAGS,
} from './directory-text.ts';
import { objectId, type ObjectId } from '../../repository/index.ts';

/** File types that are restored. Other types are kept unchanged in snapshots. */
export type EntryType = 'f' | 'd' | 's';

/** Name prefix of a partial file, stored before the file was completely read. */
export const CHECKPOINTED = '.checkpointed.';

/** Whether a name is that of a partial file. Kopia gives it the size of the whole file. */
export const isCheckpointed = (name: string): boolean => name.startsWith(CHECKPOINTED);

/** Totals of a directory and everything below it. */
export interface DirectorySummary {
  readonly size: number;
  readonly files: number;
  readonly symlinks: number;
  readonly dirs: number;
  readonly maxTimeNs: Nanoseconds;
  readonly incomplete?: string | undefined;
  readonly numFailed: number;
  readonly numIgnoredErrors?: number | undefined;
  readonly errors?: readonly EntryError[] | undefined;
}

/** `path` is relative to the root of the snapshot. */
export interface EntryError {
  readonly path: string;
  readonly error: string;
}

/** A name in a directory, or the root of a snapshot. */
export interface DirectoryEntry extends EntryHead {
  readonly objectId: ObjectId;
  readonly summary?: DirectorySummary | undefined;
  /** JSON of `ExtraAttributes`: attributes without a Kopia field. Kopia and Velero ignore them. */
  readonly extra?: string | undefined;
}

/** Parses a C integer literal, as Kopia does. Throws `BAD_DIRECTORY`. */
export function parseMode(text: string): number {
  if (!/^0[0-7]*$|^[1-9]\d*$|^0x[0-9a-f]+$/i.test(text)) throw badDirectory(`mode "${text}"`);
  const value = /^0[0-7]+$/.test(text) ? Number.parseInt(text, 8) : Number(text);
  return GO_FLAGS.reduce((mode, [go, unix]) => (value & go ? mode | unix : mode), value & 0o777);
}

function badDirectory(what: string, cause?: unknown): CodedError {
  return new CodedError('BAD_DIRECTORY', `a directory is damaged: ${what}`, { cause });
}

function encodeSummary(summary: DirectorySummary): string {
  const { incomplete, numIgnoredErrors, errors } = summary;
  return [
    `{"size":${summary.size},"files":${summary.files},"symlinks":${summary.symlinks}`,
    `,"dirs":${summary.dirs},"maxTime":"${formatGoTime(summary.maxTimeNs)}"`,
    incomplete ? `,"incomplete":${goString(incomplete)}` : '',
    `,"numFailed":${summary.numFailed}`,
    numIgnoredErrors ? `,"numIgnoredErrors":${numIgnoredErrors}` : '',
    errors?.length ? `,"errors":[${errors.map(encodeError).join(',')}]` : '',
    '}',
  ].join('');
}

const encodeError = ({ path, error }: EntryError): string =>
  `{"path":${goString(path)},"error":${goString(error)}}`;

/** JSON of an entry in Kopia's field order. Absent fields are zero. */
export function encodeEntry(entry: DirectoryEntry): string {
  const { summary, extra } = entry;
  const summaryField = summary ? `,"summ":${encodeSummary(summary)}` : '';
  return `${entryHead(entry)}${entry.objectId}"${summaryField}${extraField(extra)}}`;
}

/** Order: directories first, then the rest, each by the bytes of the name. */
export function compareEntries(a: DirectoryEntry, b: DirectoryEntry): number {
  if ((a.type === 'd') !== (b.type === 'd')) return a.type === 'd' ? -1 : 1;
  return compareUtf8(a.name, b.name);
}

const STREAM_START = `{"stream":"${DIRECTORY_STREAM}","entries":`;

/** The stream of a directory object, byte for byte as Kopia writes it. Entries must be sorted. */
export function encodeDirectory(
  entries: readonly DirectoryEntry[],
  summary: DirectorySummary,
): Uint8Array {
  const encoder = new DirectoryEncoder();
  return Buffer.from(encoder.entries(entries) + encoder.end(summary));
}

/** {@link encodeDirectory} in parts, for streams longer than the maximum string. */
export class DirectoryEncoder {
  #isEmpty = true;

  /** The text of the next entries, including the stream's start before the first. */
  entries(entries: readonly DirectoryEntry[]): string {
    if (entries.length === 0) return '';
    const start = this.#isEmpty ? `${STREAM_START}[` : ',';
    this.#isEmpty = false;
    return start + entries.map(encodeEntry).join(',');
  }

  /** An independent copy of the state. */
  copy(): DirectoryEncoder {
    const copy = new DirectoryEncoder();
    copy.#isEmpty = this.#isEmpty;
    return copy;
  }

  end(summary: DirectorySummary): string {
    const start = this.#isEmpty ? `${STREAM_START}null` : ']';
    return `${start},"summary":${encodeSummary(summary)}}\n`;
  }
}

/** A sum. Above 2^53, which few sparse files reach, it is rounded to a double. */
const sum = z.union([z.number(), z.bigint().transform(Number)]);

/** An optional sum. */
export const sumOrZero = sum.optional().default(0);

const summarySchema = z.looseObject({
  size: sumOrZero,
  files: sumOrZero,
  symlinks: sumOrZero,
  dirs: sumOrZero,
  maxTime: z.string().optional().default('1970-01-01T00:00:00Z'),
  incomplete: z.string().optional(),
  numFailed: sumOrZero,
  numIgnoredErrors: sum.optional(),
  errors: z.array(z.object({ path: z.string(), error: z.string() })).nullish(),
});

interface RawEntry {
  name?: unknown;
  type?: unknown;
  mode?: unknown;
  size?: unknown;
  mtime?: unknown;
  uid?: unknown;
  gid?: unknown;
  obj?: unknown;
  summ?: unknown;
  longshore?: unknown;
}

/** Throws if it is invalid. */
export function parseSummary(raw: unknown): DirectorySummary | undefined {
  if (raw === undefined || raw === null) return undefined;
  const { maxTime, errors, ...rest } = summarySchema.parse(raw);
  return { ...rest, maxTimeNs: parseGoTime(maxTime), errors: errors ?? undefined };
}

function optional<T extends 'string' | 'number'>(
  value: unknown,
  type: T,
): (T extends 'string' ? string : number) | undefined {
  if (value === undefined || value === null) return undefined;
  if (typeof value !== type) throw badDirectory(`a field is not a ${type}`);
  return value as T extends 'string' ? string : number;
}

/** Without a schema: 100,000 names are parsed at once. Throws `BAD_DIRECTORY`. */
export function parseEntry(value: unknown): DirectoryEntry {
  if (typeof value !== 'object' || value === null) throw badDirectory('an entry is not an object');
  const raw = value as RawEntry;
  const mode = optional(raw.mode, 'string');
  const mtime = optional(raw.mtime, 'string');
  const size = optional(raw.size, 'number') ?? 0;
  if (!Number.isSafeInteger(size) || size < 0) throw badDirectory(`size ${size}`);
  try {
    return {
      name: optional(raw.name, 'string') ?? '',
      type: optional(raw.type, 'string') ?? '',
      mode: mode === undefined ? 0 : parseMode(mode),
      size,
      mtimeNs: mtime === undefined ? 0n : parseGoTime(mtime),
      uid: optional(raw.uid, 'number') ?? 0,
      gid: optional(raw.gid, 'number') ?? 0,
      objectId: objectId(optional(raw.obj, 'string') ?? ''),
      summary: parseSummary(raw.summ),
      ...(raw.longshore !== undefined && { extra: extraText(raw.longshore) }),
    };
  } catch (cause) {
    if (cause instanceof CodedError && cause.code === 'BAD_DIRECTORY') throw cause;
    throw badDirectory('an entry is not valid', cause);
  }
}

/** The field as text, for comparison. Restores check its parts. */
const extraText = (value: unknown): string =>
  JSON.stringify(value, (_key, each: unknown) => (typeof each === 'bigint' ? String(each) : each));

/** Throws `BAD_DIRECTORY`. */
export function decodeDirectory(bytes: Uint8Array): {
  entries: DirectoryEntry[];
  summary: DirectorySummary | undefined;
} {
  let raw: { stream?: unknown; entries?: unknown; summary?: unknown };
  try {
    raw = parseJsonLossless(asBuffer(bytes).toString('utf8')) as typeof raw;
  } catch (cause) {
    throw badDirectory('it is not JSON', cause);
  }
  if (typeof raw !== 'object' || raw === null || raw.stream !== DIRECTORY_STREAM) {
    throw badDirectory('it is not a directory stream');
  }
  const list = raw.entries ?? [];
  if (!Array.isArray(list)) throw badDirectory('it has no list of entries');
  try {
    return { entries: list.map(parseEntry), summary: parseSummary(raw.summary) };
  } catch (cause) {
    if (cause instanceof CodedError && cause.code === 'BAD_DIRECTORY') throw cause;
    throw badDirectory('its summary is not valid', cause);
  }
}
