import { readFile } from 'node:fs/promises';
import { createInterface } from 'node:readline';
import { Writable } from 'node:stream';
import { availableParallelism } from 'node:os';
import {
  CanceledError,
  CodedError,
  type Logger,
  messageOf,
  parseBytes,
  Secret,
} from '../base/index.ts';
import { type BlobStorage, parseLocation } from '../blob/index.ts';
import { cgroupMemoryBytes, defaultClient, environment } from '../config/index.ts';
import { createJsonLogger } from '../observability/index.ts';
import {
  type Client,
  DEFAULT_MEMORY_BYTES,
  MEMORY_BYTES_MIN,
  openRepository,
  planMemory,
  type Repository,
} from '../repository/index.ts';
import { openRepositoryStorage, type StorageFlags } from './storage-options.ts';
import { createTerminalLogger } from './terminal.ts';
import { UsageError } from './usage-error.ts';
import { createThreadPool } from '../workers/index.ts';

/** Options that every verb takes. */
export interface CommonOptions extends StorageFlags {
  passwordFile?: string;
  client?: string;
  json?: boolean;
  verbose?: boolean;
  logJson?: boolean;
  memoryLimit?: string;
}

/** Of a container's memory the rest is for page cache and for what nobody foresaw. */
const CGROUP_SHARE = 0.8;

/** What the process may take: as told, else the default, less where the container has less. */
function memoryLimitOf({ memoryLimit }: CommonOptions): number {
  if (memoryLimit !== undefined) {
    const bytes = parseBytes(memoryLimit);
    if (bytes !== undefined) return bytes;
    throw new UsageError(`--memory-limit "${memoryLimit}" is not a size such as 256MiB`);
  }
  const container = cgroupMemoryBytes();
  if (container === undefined) return DEFAULT_MEMORY_BYTES;
  return Math.max(MEMORY_BYTES_MIN, Math.min(DEFAULT_MEMORY_BYTES, CGROUP_SHARE * container));
}

export function parseClient(text: string | undefined): Client {
  if (text === undefined) return defaultClient();
  const match = /^([^@:/]+)@([^@:/]+)$/.exec(text);
  const [, username, hostname] = match ?? [];
  if (username && hostname) return { username, hostname };
  throw new UsageError(`--client "${text}" is not of the form user@host`);
}

/** The password from a file, the environment, or a prompt on a terminal. */
export async function readPassword(
  file: string | undefined,
  question = 'Password: ',
  fromEnvironment: string | undefined = environment.password,
): Promise<Secret> {
  if (file !== undefined) {
    try {
      return nonEmpty((await readFile(file, 'utf8')).replace(/\r?\n$/, ''));
    } catch (cause) {
      if (cause instanceof CodedError) throw cause;
      throw new CodedError('NO_PASSWORD', `cannot read the password file: ${messageOf(cause)}`, {
        cause,
      });
    }
  }
  if (fromEnvironment !== undefined) return nonEmpty(fromEnvironment);
  if (process.stdin.isTTY) return nonEmpty(await prompt(question));
  const text = 'no password: use --password-file, LONGSHORE_PASSWORD or a terminal';
  throw new CodedError('NO_PASSWORD', text);
}

function nonEmpty(text: string): Secret {
  if (text !== '') return new Secret(text);
  throw new CodedError('NO_PASSWORD', 'the password is empty');
}

/** Asks on stderr, so that stdout stays clean; what is typed is not shown. */
function prompt(question: string): Promise<string> {
  process.stderr.write(question);
  const silent = new Writable({
    write: (_chunk, _encoding, callback) => {
      callback();
    },
  });
  const lines = createInterface({ input: process.stdin, output: silent, terminal: true });
  return new Promise((resolve, reject) => {
    lines.once('SIGINT', () => {
      lines.close();
      reject(new CanceledError('user'));
    });
    lines.question('', (answer) => {
      process.stderr.write('\n');
      lines.close();
      resolve(answer);
    });
  });
}

export function createLogger(options: CommonOptions): Logger {
  const level = options.verbose === true ? 'debug' : (environment.logLevel ?? 'warn');
  return options.logJson === true ? createJsonLogger(level) : createTerminalLogger(level);
}

export interface OpenedContext extends AsyncDisposable {
  readonly repository: Repository;
  readonly storage: BlobStorage;
  readonly logger: Logger;
}

interface OpenContextOptions {
  dataPath?: boolean;
  /** False: everything is read from the storage itself. */
  cache?: boolean;
  password?: Secret;
  logger?: Logger;
}

/** Opens what `--repo` names. With `dataPath` the threads are up; the caller disposes. */
export async function openContext(
  options: CommonOptions,
  { dataPath = false, cache = true, ...given }: OpenContextOptions = {},
): Promise<OpenedContext> {
  const threads = availableParallelism();
  const isRemote = parseLocation(options.repo).kind !== 'file';
  const { indexMemoryBytes, ...memory } = planMemory(memoryLimitOf(options), threads, isRemote);
  const factory = dataPath ? createThreadPool(threads) : undefined;
  const logger = given.logger ?? createLogger(options);
  const client = parseClient(options.client);
  const password = given.password ?? (await readPassword(options.passwordFile));
  const storage = await openRepositoryStorage(options, logger, { cache });
  try {
    const repository = await openRepository({
      storage,
      password,
      client,
      logger,
      indexMemoryBytes,
      ...(factory && { dataPath: { factory, threads, memory } }),
    });
    return {
      repository,
      storage,
      logger,
      async [Symbol.asyncDispose]() {
        await repository.close();
        await storage.close();
      },
    };
  } catch (error) {
    await storage.close();
    throw error;
  }
}

/** Aborts on Ctrl-C and SIGTERM; a second Ctrl-C ends at once. */
export function interruptSignal(): { signal: AbortSignal; dispose: () => void } {
  const controller = new AbortController();
  const onSignal = (name: NodeJS.Signals): void => {
    if (controller.signal.aborted) process.exit(130);
    controller.abort(new CanceledError(name === 'SIGTERM' ? 'shutdown' : 'user'));
    if (process.stderr.isTTY)
      process.stderr.write('\nstopping; press Ctrl-C again to end at once\n');
  };
  process.on('SIGINT', onSignal);
  process.on('SIGTERM', onSignal);
  return {
    signal: controller.signal,
    dispose: () => {
      process.off('SIGINT', onSignal);
      process.off('SIGTERM', onSignal);
    },
  };
}
