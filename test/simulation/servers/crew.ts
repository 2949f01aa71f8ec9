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
   * What only a server that leads may ask for, also while nobody else leads. Anything else is
   * forbidden once another one leads: actions do not know who does, and end when they are told to.
   */
  readonly isLeadersOwn: (what: string) => boolean;
}

/** The servers of a course: each that dies is replaced by another one a while later. */
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

  /** Of one that dies. May be repeated. */
  replace(server: ServerProcess): void {
    const { time, random } = this.#options;
    const at = this.#servers.indexOf(server);
    if (at === -1) return;
    this.#servers.splice(at, 1);
    time.after(random.between(500, 10_000), () => {
      this.start();
    });
  }

  /** Of one whose process has ended by itself. */
  ended(server: ServerProcess, error: unknown): void {
    const { notes } = this.#options;
    if (!isEndOfProcess(error)) notes.problem(`${server.name} ended: ${messageOf(error)}`);
    notes.count('processes that ended');
    server.kill();
    this.replace(server);
  }

  /** Before each write: only who leads may make it. */
  checkWrite(server: ServerProcess, what: string): void {
    if (server.isLeading) return;
    const { notes, isLeadersOwn } = this.#options;
    const other = this.#servers.find((each) => each !== server && each.isLeading);
    if (!isLeadersOwn(what) && !other) return;
    const leader = other ? `${other.name} leads` : 'it does not lead';
    notes.problem(`${server.name} wants to ${what}, and ${leader}`);
  }

  /** At the end of the course. */
  killAll(): void {
    for (const server of this.#servers) server.kill();
  }
}
