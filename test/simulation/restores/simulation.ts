import { restoreJournalFolder } from '../../../src/archive/index.ts';
import { type Clock, CodedError, messageOf } from '../../../src/base/index.ts';
import type { Store } from '../../../src/dev/api-server/store.ts';
import {
  BACKUP_STORAGE_LOCATIONS,
  BACKUPS,
  CONFIG_MAPS,
  DATA_DOWNLOADS,
  type KubeObject,
  POD_VOLUME_RESTORES,
  PODS,
  type Resource,
  RESTORES,
} from '../../../src/kube/index.ts';
import { CANCEL_ANNOTATION } from '../../../src/plugin/index.ts';
import { type Loose, NAMESPACE } from '../objects.ts';
import { SharedBucket } from '../servers/bucket.ts';
import { bySeed, type Course, type CourseGiven, CourseNotes } from '../servers/course.ts';
import { Crew } from '../servers/crew.ts';
import { type ProcessWorld, type ServerProcess, START_MS } from '../servers/server-process.ts';
import { CALM, Trouble } from '../servers/trouble.ts';
import type { Weather } from '../simulated-client.ts';
import { Random, VirtualTime } from '../virtual-time.ts';
import { World } from '../world.ts';
import { BACKUP, type BackedUp, backedUp, storedBackup } from './backup.ts';
import {
  addBackup,
  addLocation,
  fill,
  RESTORE,
  serveDownloads,
  serveFiles,
  servePods,
  type Target,
} from './cluster.ts';
import { type End, endOf, RESTORED, type Status } from './end.ts';
import { restoreServer } from './server.ts';
import { idOf, Users } from './users.ts';

const MINUTE_MS = 60_000;
/** The limit after the trouble is over. Operations and hooks may take four hours each. */
const OVER_MS = 16 * 60 * MINUTE_MS;
const SETTLE_MS = 15 * MINUTE_MS;
const TURN_MS = 500;
const FINAL = /^(Completed|PartiallyFailed|Failed|FailedValidation)$/;
const OPERATIONS = [DATA_DOWNLOADS, POD_VOLUME_RESTORES] as readonly Resource<KubeObject>[];

/** A user's action during the restore, besides the trouble of servers. */
export type Event = 'deleted' | 'canceled' | 'backup gone' | 'location gone';
export const EVENTS: readonly Event[] = ['deleted', 'canceled', 'backup gone', 'location gone'];

export interface Settings {
  /** Without trouble, except for the requested kills. */
  readonly isCalm?: boolean;
  /** Kills the leading server at these turns. Turns count from the last kill. */
  readonly killsAt?: readonly number[];
  readonly event?: Event | undefined;
  /** Users work with restored objects. */
  readonly hasUsers?: boolean;
  /** No key of the bucket may be put twice. */
  readonly isWriteOnce?: boolean;
}

/** The settings of a seed. */
export function settingsOf(seed: number): Settings {
  const random = new Random(seed + 9);
  const event = random.chance(0.6) ? EVENTS[random.below(EVENTS.length)] : undefined;
  return { event, hasUsers: random.chance(0.4), isWriteOnce: random.chance(0.3) };
}

/** Up to three servers make one restore, despite trouble with servers and storage. */
export const simulateRestore = bySeed<Settings, End>(
  { isCalm: true },
  async (seed, settings, given) => {
    const stored = backedUp(new Random(seed + 1));
    const files = await storedBackup(stored);
    return new RestoreCourse(seed, settings, { ...given, stored, files }).run();
  },
);

interface CourseParts extends CourseGiven<End> {
  readonly stored: BackedUp;
  readonly files: ReadonlyMap<string, Buffer>;
}

class RestoreCourse implements ProcessWorld {
  readonly time: VirtualTime;
  readonly random: Random;
  readonly clock: Clock;
  readonly store: Store;
  readonly bucket = new SharedBucket();
  readonly isWriteOnce: boolean;
  readonly tellsLostCommands = true;
  readonly #seed: number;
  readonly #stored: BackedUp;
  readonly #expected: End | undefined;
  readonly #world: World;
  readonly #target: Target;
  readonly #notes: CourseNotes;
  readonly #crew: Crew;
  readonly #serversMax: number;
  /** Counts of commands that ran in pods, by `UID command`. */
  readonly #ran = new Map<string, number>();
  /** UIDs by pod, in the order of creation. */
  readonly #podUids = new Map<string, string[]>();
  readonly #made = new Map<string, number>();
  readonly #killsAt: number[];
  readonly #event: Event | undefined;
  readonly #eventAtMs: number;
  readonly #users: Users | undefined;
  #trouble: Trouble | undefined;
  #isFilled = false;
  #hasHappened = false;
  #turns = 0;
  #finalAtMs: number | undefined;
  #cleanAtMs: number | undefined;
  readonly #uid: string;

  constructor(
    seed: number,
    settings: Settings,
    { time, stored, files, expected, tell }: CourseParts,
  ) {
    this.#seed = seed;
    this.time = time;
    this.#stored = stored;
    this.#expected = expected;
    this.#notes = new CourseNotes(time, tell);
    this.random = new Random(seed);
    this.#crew = new Crew({
      time,
      random: this.random,
      notes: this.#notes,
      start: (name) => restoreServer(name, this),
      isLeadersOwn: (what) => /^(patch restores|exec)/.test(what),
    });
    this.clock = {
      nowNs: () => BigInt(Math.round((START_MS + time.nowMs + this.#apiOffsetMs) * 1e6)),
    };
    const { isCalm = false, killsAt = [], event, hasUsers = false, isWriteOnce = false } = settings;
    this.isWriteOnce = isWriteOnce;
    this.#world = new World(time, this.random, this.clock, {
      nodes: ['node'],
      moverDeath: () => 0,
      moverDeathsMax: 0,
      fenceMs: 40_000,
      reclaimPolicy: 'Delete',
    });
    this.store = this.#world.store;
    for (const [key, bytes] of files) this.bucket.objects.set(key, bytes);
    this.#target = fill(this.#world, new Random(seed + 2), () => (this.#isFilled = true));
    this.#uid = this.#target.restore.metadata.uid;
    const { spaces } = this.#target;
    const problem = (text: string): void => {
      this.#notes.problem(text);
    };
    const note = (what: string): void => {
      this.#notes.count(what);
    };
    const isOrphaned = (): boolean => !this.#restore;
    const serving = { world: this.#world, backedUp: stored, problem, note, isOrphaned };
    serveDownloads(serving);
    serveFiles(serving);
    servePods(serving, spaces);
    this.#watchMade();
    if (hasUsers) {
      const given = { world: this.#world, time, spaces, problem, note };
      this.#users = new Users({ ...given, random: new Random(seed + 5) }, 0.2);
    }
    this.store.watch(RESTORES, {}, this.store.version, (type, object) => {
      this.#restoreChanged(type, object as unknown as Loose);
    });
    const most = [0.3, 3, 12][new Random(seed + 3).below(3)] ?? 1;
    this.#event = event;
    this.#eventAtMs = new Random(seed + 4).between(0, most * MINUTE_MS);
    this.#killsAt = [...killsAt];
    this.#serversMax = isCalm ? 2 : 1 + new Random(seed + 6).below(3);
    this.#trouble = new Trouble({
      time,
      random: this.random,
      bucket: this.bucket,
      isCalm,
      note,
      servers: () => this.#crew.servers,
      isThrottling: true,
    });
  }

  /** Objects of the cluster are older than the Restore. */
  get #apiOffsetMs(): number {
    if (!this.#isFilled) return -60 * MINUTE_MS;
    return this.#trouble?.apiOffsetMs ?? 0;
  }

  get weather(): Weather {
    return this.#trouble?.weather ?? CALM;
  }

  async run(): Promise<Course<End>> {
    for (let i = 0; i < this.#serversMax; i++) this.#crew.start();
    this.time.after(TURN_MS, () => {
      this.#act();
    });
    await this.time.run(OVER_MS, () => this.time.nowMs > (this.#cleanAtMs ?? Infinity) + SETTLE_MS);
    for (const each of this.#staying()) this.#notes.problem(`${each} stays`);
    const isGone = this.#event === 'deleted' && this.#hasHappened;
    if (this.#finalAtMs === undefined && !isGone) {
      this.#notes.problem(
        `the Restore is ${this.#phase || 'new'} after ${OVER_MS / MINUTE_MS} minutes`,
      );
    }
    this.#crew.killAll();
    const end = isGone ? undefined : await this.#end();
    if (end && this.#notes.isTold) this.#sayEnd(end);
    if (end) this.#checkEnd(end);
    this.#checkHooks(end);
    if (this.isWriteOnce) {
      for (const key of this.bucket.putTwice) this.#notes.problem(`${key} was put twice`);
    }
    for (const violation of this.#world.violations) this.#notes.problem(violation);
    if (this.#notes.isTold)
      this.say(`seed ${this.#seed}: ${JSON.stringify([...this.#notes.counts])}`);
    const { problems, counts } = this.#notes;
    return { problems, counts, turns: this.#turns, end };
  }

  say(line: string): void {
    this.#notes.say(line);
  }

  get #restore(): Loose | undefined {
    return this.#world.find(RESTORES, RESTORE, NAMESPACE);
  }

  get #status(): Status {
    return this.#restore?.status ?? {};
  }

  get #phase(): string {
    return this.#status.phase ?? '';
  }

  onTurn(server: ServerProcess, what: string): boolean {
    if (!server.isLeading || / (leases|events)(: done)?$|^watch /.test(what)) return false;
    if (this.#finalAtMs !== undefined) return false;
    this.say(`${server.name}: ${what}`);
    const phase = this.#restore ? this.#phase : 'gone';
    this.#turns++;
    const [at] = this.#killsAt;
    if (at !== undefined) {
      if (this.#turns < at) return false;
      this.#killsAt.shift();
      this.#turns = 0;
    } else if (this.#trouble?.kills() !== true) return false;
    this.#notes.count(`kills while ${phase === '' ? 'New' : phase}`);
    this.#crew.replace(server);
    return true;
  }

  onEnd(server: ServerProcess, error: unknown): void {
    this.#crew.ended(server, error);
  }

  onWrite(server: ServerProcess, what: string): void {
    this.#crew.checkWrite(server, what);
  }

  onExec(pod: string, command: string): () => void {
    return () => {
      const [namespace = '', name = ''] = pod.split('/');
      const uid = this.#world.find(PODS, name, namespace)?.metadata.uid;
      if (uid === undefined) throw new CodedError('KUBE_NOT_FOUND', `there is no pod ${pod}`);
      const key = `${uid} ${command}`;
      const times = (this.#ran.get(key) ?? 0) + 1;
      this.#ran.set(key, times);
      this.#notes.count('hooks');
      if (times > 1) this.#notes.problem(`${command} is run again in ${pod}`);
      if (command !== 'fail') return;
      throw new CodedError('EXEC_FAILED', 'the command ended with exit code 1', {
        facts: { exitCode: 1 },
      });
    };
  }

  /** No object is created twice, unless a user has deleted it. */
  #watchMade(): void {
    for (const resource of RESTORED) {
      this.store.watch(resource, {}, this.store.version, (type, { metadata }) => {
        const { namespace = '', name, uid } = metadata;
        if (type !== 'ADDED' || !this.#target.spaces.includes(namespace)) return;
        const id = idOf(resource, metadata);
        const times = (this.#made.get(id) ?? 0) + 1;
        this.#made.set(id, times);
        if (resource.plural === PODS.plural) {
          this.#podUids.set(name, [...(this.#podUids.get(name) ?? []), uid]);
        }
        if (times === 1) return;
        this.#notes.count('objects made again that a user had deleted');
        if (this.#users?.touched.get(id) !== 'deleted') this.#notes.problem(`${id} is made again`);
        if (this.#finalAtMs !== undefined) {
          this.#notes.problem(`${id} is made again, and the Restore is over`);
        }
      });
    }
  }

  #act(): void {
    if (this.time.nowMs >= this.#eventAtMs && !this.#hasHappened && this.#finalAtMs === undefined) {
      this.#happen();
    }
    this.#trouble?.act();
    this.#look();
    this.time.after(TURN_MS, () => {
      this.#act();
    });
  }

  #happen(): void {
    if (this.#event === undefined) return;
    this.#hasHappened = true;
    this.#notes.count(`${this.#event} while ${this.#phase || 'New'}`);
    const comesBack = new Random(this.#seed + 8);
    const backMs = comesBack.between(0.2, 25) * MINUTE_MS;
    switch (this.#event) {
      case 'deleted':
        this.store.delete(RESTORES, NAMESPACE, RESTORE);
        return;
      case 'canceled':
        this.#world.patch(RESTORES, NAMESPACE, RESTORE, {
          metadata: { annotations: { [CANCEL_ANNOTATION]: 'true' } },
        });
        return;
      case 'backup gone':
        this.store.delete(BACKUPS, NAMESPACE, BACKUP);
        // The sync creates it again, or another location gets a Backup of its name.
        if (comesBack.chance(0.8)) {
          const location = comesBack.chance(0.3) ? 'elsewhere' : undefined;
          if (location !== undefined) this.#notes.count('another Backup of the name');
          this.time.after(backMs, () => {
            addBackup(this.#world, location);
          });
        }
        return;
      case 'location gone':
        this.store.delete(BACKUP_STORAGE_LOCATIONS, NAMESPACE, 'default');
        this.time.after(backMs, () => {
          addLocation(this.#world);
        });
        return;
    }
  }

  #restoreChanged(type: string, { status }: Loose): void {
    if (type === 'DELETED') {
      if (this.#event !== 'deleted') this.#notes.problem('the Restore was deleted');
      this.say('the Restore is gone');
      return;
    }
    const { phase = '', failureReason = '' } = (status ?? {}) as Status;
    if (!FINAL.test(phase)) {
      if (this.#finalAtMs !== undefined)
        this.#notes.problem(`the Restore was over, and is ${phase}`);
      return;
    }
    if (this.#finalAtMs !== undefined) return;
    this.#finalAtMs = this.time.nowMs;
    this.#notes.count(`ends as ${phase}`);
    this.say(`the Restore is ${phase} ${failureReason}`);
    if (!phase.startsWith('Failed')) return;
    // A restore continues from the stored files after its Backup is deleted.
    const mayFail = this.#hasHappened && this.#event !== 'backup gone';
    if (mayFail && phase === 'Failed' && failureReason !== '') return;
    const { validationErrors = [] } = (status ?? {}) as { validationErrors?: string[] };
    const isPlaceGone = this.#hasHappened && / gone$/.test(this.#event ?? '');
    if (isPlaceGone && validationErrors.every((each) => each.includes('not found'))) return;
    this.#notes.problem(`${phase}: ${failureReason}${validationErrors.join()}`);
  }

  /** The course is over when nothing forbidden is left for a while. */
  #look(): void {
    const isFinal = this.#finalAtMs !== undefined || !this.#restore;
    const isClean = isFinal && this.#trouble?.isOver === true && this.#staying().length === 0;
    if (!isClean) this.#cleanAtMs = undefined;
    else this.#cleanAtMs ??= this.time.nowMs;
  }

  /** Remaining objects that must not exist after the end of the restore. */
  #staying(): string[] {
    const name = (kind: string) => (object: KubeObject) => `${kind} ${object.metadata.name}`;
    const labelSelector = 'velero.io/restore-uid';
    const maps = this.store.list(CONFIG_MAPS, { namespace: NAMESPACE, labelSelector });
    const isGone = !this.#restore;
    const running = OPERATIONS.flatMap((resource) =>
      this.store
        .list(resource)
        .filter((object) => {
          const { phase = '' } = (object as unknown as Loose).status ?? {};
          return isGone || !['Completed', 'Failed', 'Canceled'].includes(String(phase));
        })
        .map(name(resource.kind)),
    );
    // The journal of a failed restore is deleted with its files.
    const hasFailed = this.#phase.startsWith('Failed') || this.#status.failureReason !== undefined;
    const folder = isGone ? `restores/${RESTORE}/` : restoreJournalFolder(RESTORE, this.#uid);
    return [
      ...(this.#event === 'deleted' && this.#hasHappened && !isGone ? ['the Restore'] : []),
      ...[...maps.map(name('ConfigMap')), ...running],
      ...(hasFailed ? [] : this.bucket.keys(folder)),
    ];
  }

  async #end(): Promise<End | undefined> {
    const status = (this.#restore?.status ?? {}) as Status;
    const { spaces } = this.#target;
    try {
      return await endOf(this.bucket, this.#world, { uid: this.#uid, status, spaces });
    } catch (error) {
      this.#notes.problem(`the restore cannot be read: ${messageOf(error)}`);
      return undefined;
    }
  }

  #sayEnd({ status, errors, warnings, log }: End): void {
    this.say(JSON.stringify(status));
    const lines = log.split('\n').filter((line) => /level=(error|warning)/.test(line));
    for (const line of [...errors, ...warnings, ...lines]) this.say(`  ${line}`);
  }

  #checkEnd(end: End): void {
    const { status, errors, warnings, operationPhases, missing } = end;
    const { phase = '', failureReason } = status;
    if (phase !== 'FailedValidation' && status.completionTimestamp === undefined)
      this.#notes.problem('there is no time of its end');
    // A restore that fails, or loses its location, may lack files.
    if (phase.startsWith('Failed') || failureReason !== undefined) return;
    for (const file of missing) this.#notes.problem(`${file} is missing`);
    const counts = {
      errors: [errors.length, status.errors],
      warnings: [warnings.length, status.warnings],
      attempted: [operationPhases.length, status.restoreItemOperationsAttempted],
      completed: [
        operationPhases.filter((each) => each === 'Completed').length,
        status.restoreItemOperationsCompleted,
      ],
      failed: [
        operationPhases.filter((each) => each === 'Failed').length,
        status.restoreItemOperationsFailed,
      ],
    } as const;
    for (const [what, [stored, told = 0]] of Object.entries(counts)) {
      if (stored !== told)
        this.#notes.problem(`${what}: ${stored} are stored, and ${told} are told`);
    }
    // A later try may repeat lines of an earlier one.
    const said = errorLines(end).length;
    if (said < errors.length) {
      this.#notes.problem(`the log has ${said} errors, and the results have ${errors.length}`);
    }
    if ((phase === 'Completed') !== (errors.length === 0)) {
      this.#notes.problem(`it is ${phase} with ${errors.length} errors`);
    }
    const isCanceled = this.#event === 'canceled' && this.#hasHappened;
    if (this.#expected && !isCanceled) {
      this.#compare(this.#expected, end);
    }
  }

  /** Whether a line is about hooks, or about objects that a user has touched. */
  #isExcused(line: string): boolean {
    if (line.includes('hook')) return true;
    // An earlier try may have updated the object without a note. Now it is the same.
    if (this.#target.isUpdate && /\((created|updated|skipped)\)$/.test(line)) return true;
    const names = [...(this.#users?.touched.keys() ?? [])].map((id) => id.split('/').at(-1) ?? '');
    // A user who ends a pod affects its volumes, and a deleted claim affects pods.
    return names.some((name) => {
      if (line.includes(name)) return true;
      const pod = /^pod-(.*)$/.exec(name)?.[1];
      const claim = /^files-(.*)$/.exec(name)?.[1];
      return (
        (pod !== undefined && line.includes(`files-${pod}`)) ||
        (claim !== undefined && line.includes(`pod-${claim}`))
      );
    });
  }

  #compare(expected: End, end: End): void {
    for (const key of ['errors', 'warnings', 'resourceList', 'operations', 'volumes'] as const) {
      const [now, before] = [end[key], expected[key]].map((lines) => new Set(lines)) as [
        Set<string>,
        Set<string>,
      ];
      for (const line of now.difference(before)) {
        if (!this.#isExcused(line)) this.#notes.problem(`${key} have: ${line}`);
      }
      for (const line of before.difference(now)) {
        if (!this.#isExcused(line)) this.#notes.problem(`${key} lack: ${line}`);
      }
    }
    for (const [id, before] of expected.objects) {
      const now = end.objects.get(id);
      if (this.#isExcused(id)) continue;
      if (now !== before) this.#notes.problem(`${id} is ${now ?? 'missing'} and not ${before}`);
    }
    for (const id of end.objects.keys()) {
      if (!expected.objects.has(id)) this.#notes.problem(`${id} is in the cluster`);
    }
  }

  /** Each hook has run once, or an error says why not. */
  #checkHooks(end: End | undefined): void {
    const { phase = '', failureReason, hookStatus = {} } = end?.status ?? {};
    if (!end || phase.startsWith('Failed') || failureReason !== undefined) return;
    if (this.#event === 'canceled' && this.#hasHappened) return;
    let attempted = 0;
    for (const [name, { hooks }] of this.#stored.pods) {
      const [uid, ...more] = this.#podUids.get(name) ?? [];
      attempted += hooks.length;
      if (uid === undefined || more.length > 0) continue;
      // Results name the namespace of a hook, and the log names the pod.
      const told = errorLines(end).filter((line) => `${line} `.includes(`name=${name} `));
      for (const hook of hooks) {
        const times = this.#ran.get(`${uid} ${hook}`) ?? 0;
        const word = hook === 'annotated' ? 'annotation' : `hook ${hook} `;
        const isTold = told.some((line) => line.includes(word));
        if (times === 0 && !isTold) this.#notes.problem(`${hook} has not run in ${name}`);
        if (hook === 'fail' && !isTold)
          this.#notes.problem(`${hook} failed in ${name} without a word`);
      }
    }
    const failed = end.errors.filter((line) => /hook/.test(line)).length;
    const { hooksAttempted = 0, hooksFailed = 0 } = hookStatus;
    if (hooksAttempted !== attempted) {
      this.#notes.problem(`${hooksAttempted} hooks are told, and ${attempted} were due`);
    }
    if (hooksFailed !== failed) {
      this.#notes.problem(`${hooksFailed} hooks are told as failed, and ${failed} are errors`);
    }
  }
}

const errorLines = ({ log }: End): string[] =>
  log.split('\n').filter((line) => line.includes('level=error'));
