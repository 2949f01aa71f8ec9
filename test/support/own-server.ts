import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import * as fs from 'node:fs';

export interface OwnServerOptions {
  readonly program: string;
  readonly parameters: readonly string[];
  readonly env: NodeJS.ProcessEnv;
  /** The log is appended to this file. */
  readonly log: string;
}

/** `longshore server` as a process of the test. */
export class OwnServer implements AsyncDisposable {
  readonly #child: ChildProcess;

  private constructor(child: ChildProcess) {
    this.#child = child;
  }

  static start({ program, parameters, env, log }: OwnServerOptions): OwnServer {
    const file = fs.openSync(log, 'a');
    try {
      return new OwnServer(spawn(program, [...parameters], { env, stdio: ['ignore', file, file] }));
    } finally {
      fs.closeSync(file);
    }
  }

  get pid(): number {
    return this.#child.pid ?? 0;
  }

  get isGone(): boolean {
    return this.#child.exitCode !== null || this.#child.signalCode !== null;
  }

  /** Like a kernel that is short of memory. */
  async kill(): Promise<void> {
    await this.#end('SIGKILL');
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#end('SIGTERM');
  }

  async #end(signal: NodeJS.Signals): Promise<void> {
    if (this.isGone) return;
    const gone = once(this.#child, 'exit');
    this.#child.kill(signal);
    await gone;
  }
}
