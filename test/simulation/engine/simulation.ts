import { isCode, type Logger, messageOf } from '../../../src/base/index.ts';
import type { MaintenanceReport } from '../../../src/repository/index.ts';
import type { UploadResult } from '../../../src/uploader/index.ts';
import { Random, VirtualTime } from '../virtual-time.ts';
import { maintain, takeOver, upload, type UploadCourse } from './actors.ts';
import { Bucket, type Weather } from './bucket.ts';
import { Machine } from './machine.ts';
import { Oracle } from './oracle.ts';
import {
  DAY_MS,
  type End,
  Host,
  HOUR_MS,
  MINUTE_MS,
  Process,
  type ProcessOptions,
} from './process.ts';
import { fillBucket, templateBlobs } from './template.ts';
import { newImage, Volume, Volumes } from './volume.ts';
import { WaitBook } from './wait-book.ts';

export interface Course {
  readonly problems: readonly string[];
  /** How often each kind of event happened. */
  readonly counts: ReadonlyMap<string, number>;
  readonly days: number;
}

export interface SimulateOptions {
  /** Called for every event with a line. */
  readonly trace?: (line: string) => void;
  /** Overrides the seed's own choice. */
  readonly kind?: Kind | undefined;
}

/** Errors of injected faults. All other errors are faults of the engine. */
const EXPECTED = [
  'STORAGE_THROTTLED',
  'STORAGE_UNREACHABLE',
  'STORAGE_FAILED',
  'STORAGE_STALLED',
  'STORAGE_FULL',
  'THREAD_DIED',
  'CANCELED',
  'NOT_MAINTENANCE_OWNER',
  'BAD_IGNORE_FILE',
  'BAD_IGNORE_PATTERN',
];

/** Errors that a wrong listing may cause. They change nothing. */
const NOTICED_LIES = [
  'CONTENT_NOT_FOUND',
  'DAMAGED_BLOB',
  'MANIFEST_NOT_FOUND',
  'BAD_LISTING',
  'INDEX_SHRUNK',
  'INDEX_INCOMPLETE',
  'INDEX_HIDDEN',
  'EPOCH_IMPLAUSIBLE',
];

/** The greatest offset of a synchronised clock, in each direction. */
const SKEW_MS_MAX = 2 * MINUTE_MS;
/**
 * The size of a clock step, in each direction. Kopia allows 1 h between a deletion and its cleanup
 * (DropContentFromIndexExtraMargin). Maintenance refuses clocks that are off by more than 5
 * minutes.
 */
const STEP_MS_MAX = 30 * MINUTE_MS;
/** Markers of dead sessions keep packs for 96 h. Collections and rewrites follow. */
const QUIET_MS = 8 * DAY_MS;
const CALM: Weather = { latencyMs: 30, slowMs: 0, slow: 0, refused: 0, lost: 0, late: 0, lies: 0 };
/** How often the world looks for stuck processes. */
const LOOK_MS = 20 * MINUTE_MS;

/**
 * The kinds of courses. Minutes: uploads with many checkpoints and few buffers, without
 * maintenance. Days: everything. Long: an upload of days, and maintenance every few hours.
 */
export type Kind = 'minutes' | 'days' | 'long';

interface Pace {
  readonly daysMin: number;
  readonly daysMax: number;
  readonly writersMax: number;
  readonly filesMax: number;
  readonly bytesMax: number;
  readonly largeShare: number;
  readonly directoryShare: number;
  /** Hours between two uploads of a writer, and between two maintenance runs of a host. */
  readonly uploadHours: readonly [number, number];
  readonly maintenanceHours: readonly [number, number];
  /** Shares of full maintenance runs, slow uploads and busy uploads. */
  readonly full: number;
  readonly slow: number;
  readonly busy: number;
}

const PACES: Record<Kind, Pace> = {
  minutes: {
    daysMin: 0.2,
    daysMax: 0.5,
    writersMax: 2,
    filesMax: 40,
    bytesMax: 900_000,
    largeShare: 0.4,
    directoryShare: 0.4,
    uploadHours: [0.5, 5],
    maintenanceHours: [8, 100],
    full: 0.6,
    slow: 0,
    busy: 0.7,
  },
  days: {
    daysMin: 3,
    daysMax: 6,
    writersMax: 3,
    filesMax: 10,
    bytesMax: 150_000,
    largeShare: 0.3,
    directoryShare: 0.2,
    uploadHours: [8, 40],
    maintenanceHours: [10, 24],
    full: 0.6,
    slow: 0.03,
    busy: 0.2,
  },
  long: {
    daysMin: 3.5,
    daysMax: 4.5,
    writersMax: 2,
    filesMax: 30,
    bytesMax: 10_000,
    largeShare: 0.7,
    directoryShare: 0.1,
    uploadHours: [2, 50],
    maintenanceHours: [4, 7],
    full: 0.9,
    slow: 0.7,
    busy: 0,
  },
};

interface Writer {
  readonly host: Host;
  readonly volume: Volume;
  readonly isBlock: boolean;
  process: Process | undefined;
  uploads: number;
}

/** Runs one course. The same seed gives the same course. */
export async function simulate(seed: number, options: SimulateOptions = {}): Promise<Course> {
  const template = await templateBlobs();
  const first = await new Simulation(seed, options).run(template);
  if (
    options.trace !== undefined ||
    !first.problems.some((text) => text.includes('without an end'))
  )
    return first;
  // Runs the same course again, and records where each wait began.
  using book = new WaitBook();
  return await new Simulation(seed, options, book).run(template);
}

class Simulation {
  readonly #seed: number;
  readonly #random: Random;
  readonly #time: VirtualTime;
  readonly #bucket: Bucket;
  readonly #oracle: Oracle;
  readonly #volumes = new Volumes();
  readonly #writers: Writer[] = [];
  readonly #maintainers = [new Host('maintainer-a'), new Host('maintainer-b')];
  #owner = this.#maintainers[0];
  readonly #processes = new Set<Process>();
  readonly #problems: string[] = [];
  readonly #counts = new Map<string, number>();
  readonly #trace: (line: string) => void;
  readonly #logger: Logger;
  readonly #kind: Kind;
  readonly #days: number;
  readonly #book: WaitBook | undefined;
  #looks: Promise<unknown> = Promise.resolve();
  #processCount = 0;
  #seenWrites = 0;
  #isOver = false;

  constructor(seed: number, { trace, kind }: SimulateOptions, book?: WaitBook) {
    this.#seed = seed;
    this.#book = book;
    this.#random = new Random(seed + 1);
    this.#time = new VirtualTime(seed);
    this.#trace = (line) => trace?.(`${stamp(this.#time.nowMs)} ${line}`);
    this.#kind = kind ?? someKind(this.#random);
    const { daysMin, daysMax } = PACES[this.#kind];
    this.#days = this.#random.between(daysMin, daysMax);
    const tell = {
      count: (event: string) => {
        this.#count(event);
      },
      trace: (line: string) => {
        this.#trace(line);
      },
    };
    this.#bucket = new Bucket(this.#time, new Random(seed ^ 0x51ed270b), this.#someWeather(), tell);
    this.#oracle = new Oracle(this.#bucket, this.#time);
    const log = (fields: object, message: string): void => {
      this.#trace(`log: ${message} ${JSON.stringify(fields)}`);
    };
    this.#logger = { debug: () => undefined, info: log, warn: log, error: log };
  }

  #count(event: string, by = 1): void {
    this.#counts.set(event, (this.#counts.get(event) ?? 0) + by);
  }

  #someWeather(): Weather {
    const random = this.#random;
    const isRough = random.chance(0.5);
    const some = (chance: number): number => (isRough ? random.next() * chance : 0);
    return {
      latencyMs: random.chance(0.5) ? 30 : 400,
      slowMs: 90_000,
      slow: some(0.04),
      refused: some(0.06),
      lost: some(0.04),
      late: some(0.02),
      lies: random.chance(0.3) ? 0.05 : 0,
    };
  }

  async run(template: ReadonlyMap<string, Uint8Array>): Promise<Course> {
    using machine = new Machine(this.#time, this.#seed);
    machine.install(this.#volumes);
    const onRejection = (error: unknown): void => {
      this.#problem(`a rejection that nobody handled: ${messageOf(error)}`);
    };
    process.on('unhandledRejection', onRejection);
    try {
      const random = this.#random;
      await fillBucket(this.#bucket, template, {
        packBytes: 2 ** (16 + random.below(4)),
        epochBlobs: 2 + random.below(6),
        rangeEpochs: 1 + random.below(3),
      });
      this.#setUp();
      const endMs = this.#days * DAY_MS;
      await this.#time.run(endMs, () => this.#problems.length > 0);
      await this.#quietDown();
    } catch (error) {
      this.#problem(`the simulation itself failed: ${(error as Error).stack ?? ''}`);
    } finally {
      await this.#looks;
      await this.#oracle.close();
      process.off('unhandledRejection', onRejection);
    }
    return { problems: this.#problems, counts: this.#counts, days: this.#days };
  }

  #problem(text: string): void {
    const line = `${stamp(this.#time.nowMs)} ${text}`;
    this.#trace(`PROBLEM ${line}`);
    this.#problems.push(line);
  }

  #setUp(): void {
    const random = this.#random;
    const { writersMax, filesMax, bytesMax, largeShare, directoryShare } = PACES[this.#kind];
    const count = 1 + random.below(writersMax);
    for (let i = 0; i < count; i++) {
      const isBlock = random.chance(0.2);
      const name = `writer-${i}`;
      const volumeRandom = new Random(this.#seed * 31 + i + 7);
      const volume = isBlock
        ? newImage(name, this.#time, volumeRandom, 100_000 + random.below(600_000))
        : new Volume(name, this.#time, volumeRandom, {
            files: 2 + random.below(filesMax),
            bytesMax: 100_000 + random.below(bytesMax),
            largeShare,
            directoryShare,
            isHostile: random.chance(0.1),
          });
      this.#volumes.add(volume);
      const host = new Host(name);
      host.offsetNs = this.#skewNs(SKEW_MS_MAX);
      this.#writers.push({ host, volume, isBlock, process: undefined, uploads: 0 });
    }
    for (const host of this.#maintainers) host.offsetNs = this.#skewNs(SKEW_MS_MAX);
    for (const writer of this.#writers) this.#planUpload(writer);
    for (const host of this.#maintainers) this.#planMaintenance(host);
    this.#again(LOOK_MS, LOOK_MS, () => {
      this.#lookForStuck();
    });
    this.#again(2 * HOUR_MS, 40 * HOUR_MS, () => {
      this.#someTrouble();
    });
    for (const { volume } of this.#writers) {
      this.#again(10 * MINUTE_MS, 6 * HOUR_MS, () => {
        if (volume.root.children.has('image')) return;
        for (let i = random.below(4); i >= 0; i--) volume.change();
        if (random.chance(0.03)) volume.breakOne();
      });
    }
  }

  /** Repeats after a time between the two, until the seed is over. */
  #again(lowMs: number, highMs: number, run: () => void): void {
    this.#time.after(this.#random.between(lowMs, highMs), () => {
      if (this.#isOver && this.#processes.size === 0) return;
      run();
      this.#again(lowMs, highMs, run);
    });
  }

  #skewNs(maxMs: number): bigint {
    return BigInt(Math.floor(this.#random.between(-maxMs, maxMs))) * 1_000_000n;
  }

  #someTrouble(): void {
    const random = this.#random;
    const { nowMs } = this.#time;
    const running = [...this.#processes];
    const one = running[random.below(running.length)];
    switch (random.below(5)) {
      case 0: {
        const kind = random.chance(0.6) ? 'away' : 'full';
        const untilMs = nowMs + random.between(10_000, 3 * HOUR_MS);
        this.#trace(`the bucket is ${kind} until ${stamp(untilMs)}`);
        this.#bucket.windows.push({ kind, fromMs: nowMs, untilMs });
        this.#count(`storage ${kind}`);
        break;
      }
      case 1: {
        const hosts = [...this.#writers.map(({ host }) => host), ...this.#maintainers];
        const host = hosts[random.below(hosts.length)] as Host;
        const stepNs = this.#skewNs(STEP_MS_MAX);
        this.#trace(`the clock of ${host.name} steps by ${stepNs / 1_000_000_000n} s`);
        host.offsetNs += stepNs;
        // The clock is set right again.
        this.#time.after(random.between(MINUTE_MS, 6 * HOUR_MS), () => {
          host.offsetNs -= stepNs;
        });
        for (const each of running) if (each.options.host === host) each.troubles.add('a clock');
        this.#count(stepNs > 0n ? 'clocks forwards' : 'clocks backwards');
        break;
      }
      case 2:
        if (!one || random.chance(0.7)) break;
        this.#trace(`${one.name} is killed`);
        one.kill();
        break;
      case 3: {
        if (!one) break;
        const ms = random.between(MINUTE_MS, 3 * HOUR_MS);
        this.#trace(`${one.name} sleeps for ${Math.round(ms / MINUTE_MS)} min`);
        one.troubles.add('a sleep');
        one.suspend(ms);
        this.#count('sleeping processes');
        break;
      }
      default:
        if (!one || random.chance(0.7)) break;
        this.#trace(`${one.name} is told to stop`);
        one.troubles.add('a stop');
        one.abort.abort();
        this.#count('stopped processes');
    }
  }

  #spawn(
    host: Host,
    kind: string,
    options: Partial<ProcessOptions>,
    main: (process: Process) => Promise<void>,
    after: (process: Process, end: End) => void,
  ): Process {
    const random = this.#random;
    const name = `${kind}#${++this.#processCount}@${host.name}`;
    const process = new Process({
      time: this.#time,
      host,
      name,
      seed: this.#seed * 1009 + this.#processCount,
      tickMs: 1000,
      taskMs: 5,
      readMs: 20,
      threadDeath: 0,
      killAtWait: random.chance(0.1) ? 1 + random.below(120) : 0,
      ...options,
    });
    if (this.#isBadTime()) process.troubles.add('a bad time');
    this.#processes.add(process);
    process.onEnd = (end) => {
      this.#processes.delete(process);
      this.#trace(`${name}: ${describe(end)}`);
      this.#count(`${kind}: ${end.kind}`);
      if (end.kind === 'failed') this.#judgeFailure(process, end.error);
      this.#look(name);
      after(process, end);
    };
    this.#trace(`${name} starts`);
    process.start(main);
    return process;
  }

  #isBadTime(): boolean {
    return this.#bucket.inWindow('away') || this.#bucket.inWindow('full');
  }

  /** A process may fail only after an injected fault, and only with its error. */
  #judgeFailure(process: Process, error: unknown): void {
    // If a collection cannot walk a whole snapshot, it stops and changes nothing.
    const isLie = process.troubles.has('a listing that lied') && isCode(error, ...NOTICED_LIES);
    if (isLie) {
      this.#count('lies that were noticed');
      return;
    }
    const isExpected = isCode(error, ...EXPECTED) || (error as Error).name === 'AbortError';
    const isClock = isCode(error, 'CLOCK_SKEW', 'INDEX_WRITE_TOO_SLOW', 'INDEX_CHANGING');
    if (isExpected || isClock) return;
    this.#problem(`${process.name} failed: ${(error as Error).stack ?? messageOf(error)}`);
  }

  #look(after: string): void {
    this.#looks = this.#looks.then(async () => {
      if (this.#bucket.writes === this.#seenWrites) return;
      this.#seenWrites = this.#bucket.writes;
      await this.#oracle.look(after);
      for (const text of this.#oracle.problems.splice(0)) this.#problem(text);
    });
  }

  #lookForStuck(): void {
    for (const process of this.#processes) {
      if (!process.looksStuck()) continue;
      const waits = [...process.endless, ...(this.#book?.of(process) ?? [])];
      const list = waits.length > 0 ? `:\n    ${waits.join('\n    ')}` : '';
      this.#problem(`${process.name} waits without an end${list}`);
    }
  }

  #planUpload(writer: Writer): void {
    const [low, high] = PACES[this.#kind].uploadHours;
    // The first backup starts early.
    const factor = writer.uploads === 0 ? 0.2 : 1;
    const gapMs = this.#random.between(low, high) * factor * HOUR_MS;
    this.#time.after(gapMs, () => {
      if (!this.#isOver) this.#upload(writer);
    });
  }

  #upload(writer: Writer): void {
    const random = this.#random;
    const { volume, host, isBlock } = writer;
    const { slow, busy } = PACES[this.#kind];
    const isSlow = random.chance(slow);
    const isBusy = !isSlow && random.chance(busy);
    const parallel = 1 + random.below(3);
    const pace = isSlow
      ? {
          tickMs: random.between(20, 60) * MINUTE_MS,
          readMs: slowReadMs(random.between(30, 75) * HOUR_MS, parallel, volume.streams),
        }
      : { tickMs: isBusy ? 50 : 5000, readMs: 20 * 5 ** random.below(4) };
    const course: UploadCourse = {
      path: isBlock ? `${volume.path}/image` : volume.path,
      isBlock,
      plan: random.chance(0.6) ? 'small' : 'roomy',
      parallel,
      checkpointMs: isBusy ? random.between(50, 1500) : undefined,
    };
    const threadDeath = random.chance(0.03) ? 0.02 : 0;
    const startMs = this.#time.nowMs;
    let result: UploadResult | undefined;
    const kind = isSlow ? 'slow upload' : isBusy ? 'busy upload' : 'upload';
    writer.process = this.#spawn(
      host,
      kind,
      { ...pace, threadDeath },
      (process) =>
        upload(process, { bucket: this.#bucket, logger: this.#logger }, course, {
          result: (r) => (result = r),
          flushed: (ids) => {
            this.#oracle.flushed(process.name, ids);
          },
          count: (event) => {
            this.#count(event);
          },
        }),
      () => {
        writer.process = undefined;
        writer.uploads++;
        if (result) this.#compare(writer, result, startMs);
        this.#planUpload(writer);
      },
    );
  }

  /** Checks the snapshot of a finished upload: it is listed, and equals the volume. */
  #compare({ volume, isBlock }: Writer, { id, snapshot }: UploadResult, startMs: number): void {
    if (snapshot.incomplete !== undefined) this.#count('incomplete snapshots');
    if (snapshot.incomplete !== undefined || snapshot.stats.errorCount > 0) return;
    this.#count('complete snapshots');
    this.#looks = this.#looks.then(async () => {
      const listed = this.#oracle.snapshots.find((other) => other.id === id);
      if (!listed) {
        this.#problem(
          `the snapshot ${id.slice(0, 6)} of ${volume.name} is not listed once it is made`,
        );
      } else if (!isBlock) {
        const isIgnored = (name: string): boolean => name.startsWith('.kopiaignore');
        const wrong = await this.#oracle.compare(listed, volume.root, startMs, isIgnored);
        for (const text of wrong) this.#problem(`snapshot of ${volume.name}: ${text}`);
      }
    });
  }

  #planMaintenance(host: Host): void {
    const [low, high] = PACES[this.#kind].maintenanceHours;
    this.#time.after(this.#random.between(low, high) * HOUR_MS, () => {
      if (this.#isOver) return;
      const next = (): void => {
        this.#planMaintenance(host);
      };
      if (this.#random.chance(0.15)) {
        const world = { bucket: this.#bucket, logger: this.#logger };
        this.#spawn(
          host,
          'takeover',
          {},
          (process) => takeOver(process, world),
          (_process, { kind }) => {
            if (kind === 'done') this.#owner = host;
            next();
          },
        );
      } else if (host === this.#owner || this.#random.chance(0.25)) this.#maintain(host, next);
      else next();
    });
  }

  #maintain(host: Host, next: () => void): void {
    const random = this.#random;
    const world = { bucket: this.#bucket, logger: this.#logger };
    const what = random.next();
    const { full } = PACES[this.#kind];
    const mode = what < full ? 'full' : what < (1 + full) / 2 ? 'auto' : 'quick';
    const force = random.chance(0.2);
    let report: MaintenanceReport | undefined;
    this.#spawn(
      host,
      `${mode} maintenance`,
      {},
      (process) => maintain(process, world, { mode, force }, (r) => (report = r)),
      () => {
        if (report) this.#countReport(report);
        next();
      },
    );
  }

  #countReport(report: MaintenanceReport): void {
    for (const { task, stats, skipped } of report.tasks) {
      this.#trace(`  ${task}: ${skipped ?? JSON.stringify(stats)}`);
      if (skipped !== undefined) continue;
      this.#count(`task ${task}`);
      for (const name of [
        'deletedContentCount',
        'recoveredContentCount',
        'rewrittenContentCount',
        'deletedPackCount',
      ]) {
        const value = stats?.[name];
        if (typeof value === 'number') this.#count(name, value);
      }
      if (stats?.wasAdvanced === true) this.#count('epochs advanced');
    }
  }

  /** Stops all actors and ends running processes. For some seeds, days of maintenance follow. */
  async #quietDown(): Promise<void> {
    this.#isOver = true;
    const isDone = (): boolean => this.#processes.size === 0 || this.#problems.length > 0;
    const endMs = this.#time.nowMs + 4 * DAY_MS;
    await this.#time.run(endMs, isDone);
    for (const process of this.#processes) process.kill();
    await this.#looks;
    if (this.#problems.length > 0) return;
    this.#look('the end');
    await this.#looks;
    if (this.#kind === 'days' && this.#random.chance(0.3)) await this.#collectAll();
  }

  /** Runs days of maintenance. Only young garbage may be left. */
  async #collectAll(): Promise<void> {
    this.#bucket.windows.length = 0;
    this.#bucket.weather = CALM;
    const [host] = this.#maintainers as [Host];
    const world = { bucket: this.#bucket, logger: this.#logger };
    const step = 13 * HOUR_MS;
    for (let i = 0; i < QUIET_MS / step && this.#problems.length === 0; i++) {
      this.#spawn(
        host,
        'last maintenance',
        { killAtWait: 0 },
        (process) => maintain(process, world, { mode: 'full', force: true }, () => undefined),
        () => undefined,
      );
      // A timer moves the time on, because nothing else is left to run.
      let isOver = false;
      this.#time.after(step, () => (isOver = true));
      await this.#time.run(this.#time.nowMs + step, () => isOver);
      await this.#looks;
    }
    if (this.#problems.length > 0) return;
    for (const left of await this.#oracle.garbage()) this.#problem(`garbage is left: ${left}`);
    this.#count('collected to the last');
  }
}

function someKind(random: Random): Kind {
  const what = random.next();
  return what < 0.6 ? 'minutes' : what < 0.82 ? 'days' : 'long';
}

/**
 * A read time that makes all streams together take about `wholeMs`. Each stream takes some five
 * steps to open, stat and read.
 */
function slowReadMs(wholeMs: number, parallel: number, streams: number): number {
  return Math.min(5 * HOUR_MS, (wholeMs * parallel) / (1 + streams * 2.5));
}

function describe(end: End): string {
  return end.kind === 'failed' ? `failed: ${messageOf(end.error)}` : end.kind;
}

/** Virtual time as days and time of day. */
function stamp(ms: number): string {
  const days = Math.floor(ms / DAY_MS);
  return `day ${days} ${new Date(ms % DAY_MS).toISOString().slice(11, 23)}`;
}
