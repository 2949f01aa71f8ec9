import { type ChildProcess, spawn } from 'node:child_process';
import type { Readable } from 'node:stream';
import { CodedError, isCode, type Logger, messageOf, printable } from '../../base/index.ts';
import { GrpcCode, GrpcError } from '../protocol/grpc-status.ts';
import { APP_VERSION, CORE_VERSION, MAGIC_COOKIE } from '../protocol/handshake.ts';
import { EMPTY, type Method, STDIO_DATA } from '../protocol/messages.ts';
import { type Decoded, decode, encode, encodeParts } from '../protocol/wire.ts';
import { type Address, type CallOptions, GrpcClient } from './grpc-client.ts';
import { pluginError } from './plugin-error.ts';
import { readPluginLog } from './plugin-log.ts';

export interface ProcessOptions {
  /** Path of the program. */
  readonly command: string;
  /** The server's own flags. Plugins get all flags after the verb, as in Velero. */
  readonly flags: readonly string[];
  /** The server's environment, which may contain credentials. */
  readonly environment: Readonly<Record<string, string | undefined>>;
  /** Logger of the process; called for each line. */
  readonly logger: () => Logger;
  readonly startMsMax?: number;
}

/** go-plugin v1.7.0, client.go: StartTimeout. */
const START_MS_MAX = 60_000;
/** Time for a plugin to end by itself. go-plugin v1.7.0, client.go, Kill. */
const END_MS_MAX = 2000;
/** The exit may be seen a little later than the end of the connection. */
const EXIT_SEEN_MS = 500;
const LINE_BYTES_MAX = 64 << 10;
/** Log lines to keep for the error of a failed start. */
const LAST_LINES = 5;
const SHOWN_CHARACTERS = 300;

/** go-plugin's defaults for plugins that listen on a port: Velero sets no others. */
const PORTS = { PLUGIN_MIN_PORT: '10000', PLUGIN_MAX_PORT: '25000' };

interface Running {
  readonly command: string;
  readonly child: PipedChild;
  readonly client: GrpcClient;
  readonly exit: Promise<string>;
  /** Resolves when the whole log has been read. */
  readonly logged: Promise<void>;
}

/**
 * A running plugin in any language: a program after Velero's handshake, and a connection to it.
 * Velero also opens go-plugin's broker and never uses it; this class does not open it.
 */
export class PluginProcess {
  readonly command: string;
  readonly #child: ChildProcess;
  readonly #client: GrpcClient;
  readonly #exit: Promise<string>;
  #exitText: string | undefined;
  readonly #memo = new Map<string, Promise<void>>();
  #isEnding = false;

  private constructor({ command, child, client, exit, logged }: Running) {
    this.command = command;
    this.#child = child;
    this.#client = client;
    this.#exit = exit;
    void exit.then(async (text) => {
      this.#exitText = text;
      client.close();
      // Read the process's last lines. Its child processes may keep the pipes open; their lines do
      // not count.
      await Promise.race([logged, after(EXIT_SEEN_MS)]);
      child.stderr.destroy();
      child.stdout.destroy();
    });
    void this.#drainOutput();
  }

  /** Starts the program. Throws `PLUGIN_START` with reason and file; then no process is left. */
  static async start(options: ProcessOptions, signal?: AbortSignal): Promise<PluginProcess> {
    const { command, flags, environment, logger } = options;
    signal?.throwIfAborted();
    const lines: string[] = [];
    const child = await spawned(command, flags, {
      ...environment,
      ...PORTS,
      VELERO_PLUGIN: MAGIC_COOKIE,
      PLUGIN_PROTOCOL_VERSIONS: String(APP_VERSION),
    });
    const exit = exitOf(child);
    const onLine = (text: string): void => {
      lines.push(text);
      if (lines.length > LAST_LINES) lines.shift();
    };
    const read = readPluginLog(child.stderr, { command, logger, onLine });
    const logged = read.catch(() => undefined);
    try {
      const address = await handshakeOf(child, exit, {
        waitMs: options.startMsMax ?? START_MS_MAX,
        signal,
        lastLines: async () => {
          await Promise.race([logged, after(EXIT_SEEN_MS)]);
          return lines;
        },
      });
      const client = await GrpcClient.connect(address, END_MS_MAX);
      return new PluginProcess({ command, child, client, exit, logged });
    } catch (error) {
      child.kill('SIGKILL');
      await exit;
      // Child processes may keep the pipes open, so do not wait for their end.
      child.stderr.destroy();
      child.stdout.destroy();
      if (signal?.aborted === true) throw error;
      const text = `plugin ${command} cannot be used: ${messageOf(error)}`;
      throw new CodedError('PLUGIN_START', text, { cause: error, facts: { command } });
    }
  }

  get pid(): number {
    return this.#child.pid ?? 0;
  }

  /** The process has ended, or can no longer be reached. */
  get isGone(): boolean {
    return this.#exitText !== undefined || this.#client.isClosed || this.#isEnding;
  }

  /** Resolves with a description of the exit when the process has ended. */
  get ended(): Promise<string> {
    return this.#exit;
  }

  /** A call with one answer. Rejects with a plugin error, or with the signal's reason. */
  async call(
    service: string,
    name: string,
    method: Method,
    request: Decoded,
    options: CallOptions,
  ): Promise<Decoded> {
    try {
      const bytes = encode(method.request, request);
      const answer = await this.#client.unary(`/${service}/${name}`, bytes, options);
      return decode(method.response, answer);
    } catch (error) {
      throw await this.#errorOf(error, name);
    }
  }

  /** A call with a stream of answers; leaving the loop ends it. */
  async *read(
    service: string,
    name: string,
    method: Method,
    request: Decoded,
    options: CallOptions,
  ): AsyncGenerator<Decoded> {
    try {
      const bytes = encode(method.request, request);
      for await (const answer of this.#client.read(`/${service}/${name}`, bytes, options)) {
        yield decode(method.response, answer);
      }
    } catch (error) {
      throw await this.#errorOf(error, name);
    }
  }

  /** A call with a stream of requests. Errors of `requests` are thrown unchanged. */
  async write(
    service: string,
    name: string,
    method: Method,
    requests: AsyncIterable<Decoded>,
    options: CallOptions,
  ): Promise<Decoded> {
    let failure: { readonly error: unknown } | undefined;
    async function* encoded(): AsyncGenerator<readonly Buffer[]> {
      try {
        for await (const request of requests) yield encodeParts(method.request, request);
      } catch (error) {
        failure = { error };
        throw error;
      }
    }
    try {
      const answer = await this.#client.write(`/${service}/${name}`, encoded(), options);
      return decode(method.response, answer);
    } catch (error) {
      if (failure) throw failure.error;
      throw await this.#errorOf(error, name);
    }
  }

  /** Runs `work` once in the life of this process. The next caller repeats a failed run. */
  once(key: string, work: () => Promise<void>): Promise<void> {
    let done = this.#memo.get(key);
    if (!done) {
      done = work();
      this.#memo.set(key, done);
      done.catch(() => this.#memo.delete(key));
    }
    return done;
  }

  /** Requests the end, and kills the process after 2 s. May be called twice. */
  async stop(): Promise<void> {
    if (!this.#isEnding && this.#exitText === undefined) {
      this.#isEnding = true;
      const shutdown = '/plugin.GRPCController/Shutdown';
      const options = { waitMsMax: END_MS_MAX };
      // Some plugins end before they answer.
      this.#client.unary(shutdown, encode(EMPTY, {}), options).catch(() => undefined);
    }
    const isOver = await Promise.race([this.#exit.then(() => true), after(END_MS_MAX)]);
    if (isOver !== true) this.#child.kill('SIGKILL');
    await this.#exit;
    this.#client.close();
  }

  /** Go plugins send their printed output through this stream, and block if it is not read. */
  async #drainOutput(): Promise<void> {
    const path = '/plugin.GRPCStdio/StreamStdio';
    const options = { waitMsMax: 2 ** 31 - 1 };
    try {
      for await (const bytes of this.#client.read(path, encode(EMPTY, {}), options)) {
        decode(STDIO_DATA, bytes);
      }
    } catch {
      // The program does not offer the stream and prints nothing there.
    }
  }

  async #errorOf(error: unknown, call: string): Promise<unknown> {
    const isBroken = error instanceof GrpcError && error.grpcCode === GrpcCode.unavailable;
    if (isBroken) await Promise.race([this.#exit, after(EXIT_SEEN_MS)]);
    return pluginError(error, { command: this.command, call, exit: this.#exitText });
  }
}

const after = (ms: number): Promise<undefined> =>
  new Promise((resolve) => setTimeout(() => resolve(undefined), ms).unref());

type PipedChild = ChildProcess & { readonly stdout: Readable; readonly stderr: Readable };

async function spawned(
  command: string,
  flags: readonly string[],
  environment: NodeJS.ProcessEnv,
): Promise<PipedChild> {
  try {
    const child = spawn(command, flags, { env: environment, stdio: ['ignore', 'pipe', 'pipe'] });
    await new Promise<void>((resolve, reject) => {
      child.once('spawn', resolve);
      child.once('error', reject);
    });
    child.on('error', () => undefined);
    return child;
  } catch (cause) {
    const text = `plugin ${command} cannot be started: ${remedyOf(cause)}`;
    throw new CodedError('PLUGIN_START', text, { cause, facts: { command } });
  }
}

function remedyOf(error: unknown): string {
  const text = messageOf(error);
  if (isCode(error, 'EACCES')) return `${text}. The user of the server may not execute it`;
  if (isCode(error, 'ENOENT')) return `${text}. The file, or the interpreter it names, is missing`;
  return text;
}

const exitOf = (child: ChildProcess): Promise<string> =>
  new Promise((resolve) => {
    child.once('exit', (code, signal) => {
      resolve(signal === null ? `with code ${code}` : `by ${signal}`);
    });
  });

interface Waiting {
  readonly waitMs: number;
  readonly signal: AbortSignal | undefined;
  /** The last log lines, after the process has ended. */
  readonly lastLines: () => Promise<readonly string[]>;
}

async function handshakeOf(
  child: PipedChild,
  exit: Promise<string>,
  { waitMs, signal, lastLines }: Waiting,
): Promise<Address> {
  const abort = new AbortController();
  const late = setTimeout(() => abort.abort(), waitMs);
  const given = signal ? AbortSignal.any([signal, abort.signal]) : abort.signal;
  const gaveUp = new Promise<'late'>((resolve) => {
    given.addEventListener('abort', () => resolve('late'), { once: true });
  });
  const ended = exit.then((text) => ({ text }));
  try {
    const line = await Promise.race([firstLine(child.stdout), ended, gaveUp]);
    signal?.throwIfAborted();
    if (line === 'late') {
      throw new Error(`it did not answer within ${Math.round(waitMs / 1000)} s of its start`);
    }
    if (typeof line === 'string') return addressIn(line);
    // The process closed its output, or ended without a line.
    const end = line ?? (await Promise.race([ended, after(EXIT_SEEN_MS)]));
    const told = (await lastLines()).map((text) => printable(text.slice(0, SHOWN_CHARACTERS)));
    const how = end ? `it ended ${end.text} before its handshake` : 'it closed its output';
    throw new Error(told.length === 0 ? how : `${how}; its last lines: ${told.join(' / ')}`);
  } finally {
    clearTimeout(late);
    // Read and drop later lines, so that the process never blocks.
    child.stdout.resume();
  }
}

/** Undefined if the stream ends without a line. */
function firstLine(stream: Readable): Promise<string | undefined> {
  return new Promise((resolve) => {
    let text = '';
    const end = (line: string | undefined): void => {
      stream.off('data', take);
      stream.off('close', close);
      resolve(line);
    };
    const take = (part: Buffer): void => {
      text += part.toString('latin1');
      const at = text.indexOf('\n');
      if (at !== -1) end(text.slice(0, at));
      else if (text.length > LINE_BYTES_MAX) end(text);
    };
    const close = (): void => end(undefined);
    stream.on('data', take);
    stream.on('close', close);
  });
}

/** Throws for an invalid handshake of a Velero plugin (go-plugin v1.7.0: client.go, Start). */
function addressIn(line: string): Address {
  const fields = line.trim().split('|');
  const [core, version, network, address = '', protocol = 'netrpc'] = fields;
  if (fields.length < 4) {
    const shown = printable(line.slice(0, SHOWN_CHARACTERS));
    throw new Error(`it is no plugin of Velero: its first line is no handshake but "${shown}"`);
  }
  if (core !== String(CORE_VERSION)) {
    throw new Error(`it speaks version ${core} of go-plugin's protocol, not ${CORE_VERSION}`);
  }
  if (version !== String(APP_VERSION)) {
    throw new Error(`it speaks version ${version} of Velero's plugin protocol, not ${APP_VERSION}`);
  }
  if (protocol !== 'grpc') throw new Error(`it speaks ${protocol}, not gRPC`);
  if (network === 'unix' && address !== '') return { path: address };
  const tcp = /^(.*):(\d+)$/.exec(address);
  if (network === 'tcp' && tcp) return { host: tcp[1] ?? '', port: Number(tcp[2]) };
  throw new Error(`it listens on ${network} ${address}, which is neither a socket nor a port`);
}
