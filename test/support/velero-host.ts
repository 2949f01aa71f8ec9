import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname } from 'node:path';
import { createInterface } from 'node:readline';
import { peer } from './real-api.ts';

const PROGRAM = peer('plugin-client');

/** True if Velero's plugin client is installed. With REQUIRE_PEERS=1, it is an error if not. */
export function hasVeleroHost(): boolean {
  const isThere = existsSync(PROGRAM);
  if (!isThere && process.env.REQUIRE_PEERS === '1') {
    throw new Error('a peer is missing: plugin-client; run test/peers/install.sh plugin-client');
  }
  return isThere;
}

export interface HostAnswer {
  readonly error?: string;
  readonly result?: unknown;
}

/** A line of the host's log, which includes logs of its plugins. */
export type LogLine = Readonly<Record<string, unknown>>;

/** Velero's own packages as host of the plugins in a folder (test/peers/plugin-client). */
export class VeleroHost implements AsyncDisposable {
  readonly log: LogLine[] = [];
  readonly #process: ChildProcess;
  readonly #answers: AsyncIterator<string>;
  readonly #exit: Promise<unknown>;

  constructor(plugins: string, flags: readonly string[], environment: NodeJS.ProcessEnv = {}) {
    const started = spawn(PROGRAM, ['server', ...flags], {
      env: {
        // The image of a plugin has the same.
        PATH: `${dirname(process.execPath)}:${process.env.PATH ?? ''}`,
        HOME: process.env.HOME,
        PLUGIN_DIR: plugins,
        ...environment,
      },
      stdio: ['pipe', 'pipe', 'pipe'],
    });
    this.#process = started;
    this.#exit = once(started, 'exit');
    this.#answers = createInterface({ input: started.stdout })[Symbol.asyncIterator]();
    createInterface({ input: started.stderr }).on('line', (line) => {
      this.log.push(parsed(line));
    });
  }

  /** The discovered plugins, or the reason of a failed start. */
  discovered(): Promise<HostAnswer> {
    return this.#next();
  }

  async ask(op: string, request: object = {}): Promise<HostAnswer> {
    this.#process.stdin?.write(`${JSON.stringify({ op, ...request })}\n`);
    return this.#next();
  }

  async #next(): Promise<HostAnswer> {
    const next = await this.#answers.next();
    if (next.done === true)
      throw new Error(`the host has ended: ${JSON.stringify(this.log.at(-1))}`);
    return JSON.parse(next.value) as HostAnswer;
  }

  /** Processes of running plugins. */
  plugins(): number[] {
    const { pid = 0 } = this.#process;
    // Each is a child of the thread that started it.
    const tasks = `/proc/${pid}/task`;
    return readdirSync(tasks)
      .flatMap((task) => readFileSync(`${tasks}/${task}/children`, 'utf8').split(' '))
      .filter(Boolean)
      .map(Number);
  }

  /** Kills the host with SIGKILL. */
  async kill(): Promise<void> {
    this.#process.kill('SIGKILL');
    await this.#exit;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#process.stdin?.end();
    await this.#exit;
  }
}

function parsed(line: string): LogLine {
  try {
    return JSON.parse(line) as LogLine;
  } catch {
    return { text: line };
  }
}
