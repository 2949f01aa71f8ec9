import { CodedError, define, formatBytes, parseBytes, parseDuration } from '../base/index.ts';
import { COMPRESSORS, NO_COMPRESSION } from '../codec/index.ts';
import { MEMORY_BYTES_MIN } from '../repository/index.ts';

/** How a data mover moves, as its users write it: each may be left out. */
export interface MoverSettings {
  /** Bytes per second to the storage, of each data mover. */
  readonly uploadLimit?: string | undefined;
  /** Bytes per second from the storage, of each data mover. */
  readonly downloadLimit?: string | undefined;
  /** Requests to the storage per second, of each data mover. */
  readonly requestsLimit?: string | undefined;
  /** A request to the storage that brings nothing for this long is tried again. */
  readonly storageStallTimeout?: string | undefined;
  /** What the process of a data mover may take. */
  readonly memoryLimit?: string | undefined;
  /** Metadata of the repository that is kept on disk while a volume is moved. */
  readonly cacheSize?: string | undefined;
  /** Compressor for the data of backups. */
  readonly compression?: string | undefined;
  /**
   * Large files read at once, where the backup itself does not say
   * (`uploaderConfig.parallelFilesUpload`).
   */
  readonly parallelFilesUpload?: string | undefined;
  /**
   * Backups leave out what they cannot read, and count it, where the backup itself does not say
   * (`longshore.ignoreUnreadable`).
   */
  readonly ignoreUnreadable?: string | undefined;
}
export type MoverSetting = keyof MoverSettings;

interface Rule {
  /** Of the data mover's environment. */
  readonly variable: string;
  readonly isRight: (text: string) => boolean;
  /** What would be right. */
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

/** What is wrong with a value, and what would be right; undefined when nothing is. */
export function moverSettingProblem(setting: MoverSetting, text: string): string | undefined {
  const { isRight, wanted } = RULES[setting];
  return isRight(text) ? undefined : `"${text}" is not ${wanted}`;
}

/** The environment that tells a data mover its settings. */
export function moverVariables(settings: MoverSettings): Record<string, string> {
  const variables: Record<string, string> = {};
  for (const setting of MOVER_SETTINGS) {
    const text = settings[setting];
    if (text !== undefined) define(variables, RULES[setting].variable, text);
  }
  return variables;
}

/**
 * The other way round. Throws `BAD_CONFIG`, naming every variable that is wrong and what would be
 * right.
 */
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
