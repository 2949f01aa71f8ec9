import { CodedError, define, formatBytes, parseBytes, parseDuration } from '../base/index.ts';
import { COMPRESSORS, NO_COMPRESSION } from '../codec/index.ts';
import { MEMORY_BYTES_MIN } from '../repository/index.ts';

/** Settings of data movers, as users write them. All are optional. */
export interface MoverSettings {
  /** Bytes per second to the storage, for each data mover. */
  readonly uploadLimit?: string | undefined;
  /** Bytes per second from the storage, for each data mover. */
  readonly downloadLimit?: string | undefined;
  /** Requests to the storage per second, for each data mover. */
  readonly requestsLimit?: string | undefined;
  /** A request to the storage is retried if it receives nothing for this long. */
  readonly storageStallTimeout?: string | undefined;
  /** Memory limit of a data mover's process. */
  readonly memoryLimit?: string | undefined;
  /** Metadata of the repository cached on disk during a move. */
  readonly cacheSize?: string | undefined;
  /** Compressor for the data of backups. */
  readonly compression?: string | undefined;
  /** Large files read at once, unless the backup sets `uploaderConfig.parallelFilesUpload`. */
  readonly parallelFilesUpload?: string | undefined;
  /** Backups skip and count unreadable entries; overridden by `longshore.ignoreUnreadable`. */
  readonly ignoreUnreadable?: string | undefined;
}
export type MoverSetting = keyof MoverSettings;

interface Rule {
  /** Name in the data mover's environment. */
  readonly variable: string;
  readonly isRight: (text: string) => boolean;
  /** Description of a valid value. */
  readonly wanted: string;
}

const PARALLEL_MAX = 64;
const isRate = (text: string): boolean => (parseBytes(text.replace(/\/s$/, '')) ?? 0) > 0;
const rate = 'a rate in bytes per second such as 50MiB';

const RULES: Record<MoverSetting, Rule> = {
  uploadLimit: { variable: 'LONGSHORE_UPLOAD_LIMIT', isRight: isRate, wanted: rate },
  downloadLimit: { variable: 'LONGSHORE_DOWNLOAD_LIMIT', isRight: isRate, wanted: rate },
  requestsLimit: {
    variable: 'LONGSHORE_REQUESTS_LIMIT',
    isRight: (text) => Number(text) > 0 && Number.isFinite(Number(text)),
    wanted: 'a number of requests per second above 0',
  },
  storageStallTimeout: {
    variable: 'LONGSHORE_STORAGE_STALL_TIMEOUT',
    isRight: (text) => (parseDuration(text) ?? 0n) >= 1_000_000n,
    wanted: 'a duration such as 60s',
  },
  memoryLimit: {
    variable: 'LONGSHORE_MEMORY_LIMIT',
    isRight: (text) => (parseBytes(text) ?? 0) >= MEMORY_BYTES_MIN,
    wanted: `a size such as 512MiB, of at least ${formatBytes(MEMORY_BYTES_MIN)}`,
  },
  cacheSize: {
    variable: 'LONGSHORE_CACHE_SIZE',
    isRight: (text) => parseBytes(text) !== undefined,
    wanted: 'a size such as 1GiB, or 0 for no cache',
  },
  compression: {
    variable: 'LONGSHORE_COMPRESSION',
    isRight: (text) => text === NO_COMPRESSION || COMPRESSORS.some(({ name }) => name === text),
    wanted: `one of ${[NO_COMPRESSION, ...COMPRESSORS.map(({ name }) => name)].join(', ')}`,
  },
  parallelFilesUpload: {
    variable: 'LONGSHORE_PARALLEL_FILES_UPLOAD',
    isRight: (text) => /^\d{1,2}$/.test(text) && Number(text) >= 1 && Number(text) <= PARALLEL_MAX,
    wanted: `a whole number from 1 to ${PARALLEL_MAX}`,
  },
  ignoreUnreadable: {
    variable: 'LONGSHORE_IGNORE_UNREADABLE',
    isRight: (text) => text === 'true' || text === 'false',
    wanted: 'true or false',
  },
};

export const MOVER_SETTINGS = Object.keys(RULES) as MoverSetting[];

/** Describes an invalid value, and a valid one; undefined if the value is valid. */
export function moverSettingProblem(setting: MoverSetting, text: string): string | undefined {
  const { isRight, wanted } = RULES[setting];
  return isRight(text) ? undefined : `"${text}" is not ${wanted}`;
}

/** Environment variables of a data mover with these settings. */
export function moverVariables(settings: MoverSettings): Record<string, string> {
  const variables: Record<string, string> = {};
  for (const setting of MOVER_SETTINGS) {
    const text = settings[setting];
    if (text !== undefined) define(variables, RULES[setting].variable, text);
  }
  return variables;
}

/** Reads the environment. Throws `BAD_CONFIG` with all invalid variables and valid values. */
export function moverSettingsOf(
  variableOf: (name: string) => string | undefined,
): Readonly<MoverSettings> {
  const settings: Partial<Record<MoverSetting, string>> = {};
  const problems: string[] = [];
  for (const setting of MOVER_SETTINGS) {
    const { variable } = RULES[setting];
    const text = variableOf(variable);
    if (text === undefined || text === '') continue;
    const problem = moverSettingProblem(setting, text);
    if (problem === undefined) settings[setting] = text;
    else problems.push(`${variable} ${problem}`);
  }
  if (problems.length > 0) throw new CodedError('BAD_CONFIG', problems.join('; '));
  return settings;
}
