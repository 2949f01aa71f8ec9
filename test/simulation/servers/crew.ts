import { messageOf } from '../../../src/base/index.ts';
import type { Random, VirtualTime } from '../virtual-time.ts';
import type { CourseNotes } from './course.ts';
import { isEndOfProcess, type ServerProcess } from './server-process.ts';

export interface CrewOptions {
  readonly time: VirtualTime;
  readonly random: Random;
  readonly notes: CourseNotes;
  readonly start: (name: string) => ServerProcess;
  /**
   * Requests that need leadership, even while no server leads. Other requests are forbidden only
   * while another server leads: actions do not know the leader, and end when they are stopped.
   */
  readonly isLeadersOwn: (what: string) => boolean;
}

/** The servers of a course. Each dead server is replaced later. */
export class Crew {
  readonly #options: CrewOptions;
  readonly #servers: ServerProcess[] = [];
  #started = 0;

  constructor(options: CrewOptions) {
    this.#options = options;
  }

  get servers(): readonly ServerProcess[] {
    return this.#servers;
  }

  start(): void {
    this.#servers.push(this.#options.start(`server-${this.#started++}`));
  }

  /** Replaces a dead server. Repeatable. */
  replace(server: ServerProcess): void {
    const { time, random } = this.#options;
    const at = this.#servers.indexOf(server);
    if (at === -1) return;
    this.#servers.splice(at, 1);
    time.after(random.between(500, 10_000), () => {
      this.start();
    });
  }

  /** Handles a server whose process has ended by itself. */
  ended(server: ServerProcess, error: unknown): void {
    const { notes } = this.#options;
    if (!isEndOfProcess(error)) notes.problem(`${server.name} ended: ${messageOf(error)}`);
    notes.count('processes that ended');
    server.kill();
    this.replace(server);
  }

  /** Called before each write: only the leader may make it. */
  checkWrite(server: ServerProcess, what: string): void {
    if (server.isLeading) return;
    const { notes, isLeadersOwn } = this.#options;
    const other = this.#servers.find((each) => each !== server && each.isLeading);
    if (!isLeadersOwn(what) && !other) return;
    const leader = other ? `${other.name} leads` : 'it does not lead';
    notes.problem(`${server.name} wants to ${what}, and ${leader}`);
  }

  killAll(): void {
    for (const server of this.#servers) server.kill();
  }
}
