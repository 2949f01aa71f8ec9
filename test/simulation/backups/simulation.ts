import {
  BackupArchive,
  journalFolder,
  journalsFolder,
  readTarball,
  bucketOf,
} from '../../../src/archive/index.ts';
import type { Bucket } from '../../../src/blob/index.ts';
import { type Clock, messageOf } from '../../../src/base/index.ts';
import type { Store } from '../../../src/dev/api-server/store.ts';
import { backupOperationSchema } from '../../../src/item-operations/index.ts';
import {
  type Backup,
  BACKUP_REPOSITORIES,
  BACKUPS,
  CONFIG_MAPS,
  DATA_UPLOADS,
  type KubeObject,
  POD_VOLUME_BACKUPS,
  type Resource,
  VOLUME_SNAPSHOT_CONTENTS,
  VOLUME_SNAPSHOTS,
} from '../../../src/kube/index.ts';
import {
  type JournalItem,
  recordsSchema,
  type SegmentRecords,
} from '../../../src/server/backups/run/records.ts';
import { decodeSegment } from '../../../src/server/runs/segment.ts';
import { MemoryBucket } from '../../support/memory-bucket.ts';
import { type Loose, NAMESPACE } from '../objects.ts';
import type { Weather } from '../simulated-client.ts';
import { Random, VirtualTime } from '../virtual-time.ts';
import { World } from '../world.ts';
import { type Life, SharedBucket } from '../servers/bucket.ts';
import { bySeed, type Course, type CourseGiven, CourseNotes } from '../servers/course.ts';
import { Crew } from '../servers/crew.ts';
import { type ServerProcess, START_MS } from '../servers/server-process.ts';
import { CALM, Trouble } from '../servers/trouble.ts';
import { BACKUP, collectOwned, type Contents, fill, serveFiles, serveUploads } from './cluster.ts';
import { backupServer, type ServerWorld } from './server.ts';

const MINUTE_MS = 60_000;
/** No backup takes longer once the trouble is over. */
const OVER_MS = 12 * 60 * MINUTE_MS;
const SETTLE_MS = 15 * MINUTE_MS;
const TURN_MS = 500;
/** The suffix of the first segment's key. */
const HEAD = '-00000000';

/** The end of a backup, without values that differ from run to run. */
interface End {
  readonly phase: string;
  readonly files: ReadonlyMap<string, string>;
  readonly operations: readonly string[];
  readonly volumes: readonly string[];
  readonly results: string;
  readonly resourceList: string;
  readonly items: number;
}

export interface Settings {
  /** Without trouble, except for the requested kills. */
  readonly isCalm?: boolean;
  /** Kills the leading server at these turns of InProgress, counted from the last kill. */
  readonly killsAt?: readonly number[];
  /**
   * Deletes the Backup at some time, after which nothing may stay. If the Backup ends earlier, it
   * is checked as usual.
   */
  readonly isDeleted?: boolean;
  /** No key of the bucket may be put twice. */
  readonly isWriteOnce?: boolean;
}

/** Two servers make one backup, despite trouble with them, the bucket and the API server. */
export const simulateBackup = bySeed<Settings, End>({ isCalm: true }, (seed, settings, given) =>
  new BackupCourse(seed, settings, given).run(),
);

class BackupCourse implements ServerWorld {
  readonly time: VirtualTime;
  readonly random: Random;
  readonly clock: Clock;
  readonly store: Store;
  readonly bucket = new SharedBucket();
  readonly isWriteOnce: boolean;
  readonly #seed: number;
  readonly #expected: End | undefined;
  readonly #world: World;
  readonly #contents: Contents;
  readonly #notes: CourseNotes;
  readonly #crew: Crew;
  readonly #checks: Promise<void>[] = [];
  /** Commands that ran in pods, in order. */
  readonly #commands = new Map<string, string[]>();
  /** The valid journal segments at the server's last listing. */
  readonly #seenChains = new Map<Life, readonly string[]>();
  readonly #decoded = new Map<string, SegmentRecords>();
  readonly #killsAt: number[];
  #trouble: Trouble | undefined;
  #turns = 0;
  #overAtMs: number | undefined;
  readonly #uid: string;
  /** Infinity if it is not deleted. */
  readonly #deleteAtMs: number;
  #isDeleted = false;
  #deletedPhase: string | undefined;

  constructor(seed: number, settings: Settings, { time, expected, tell }: CourseGiven<End>) {
    this.#seed = seed;
    this.time = time;
    this.#expected = expected;
    this.#notes = new CourseNotes(time, tell);
    this.random = new Random(seed);
    this.#crew = new Crew({
      time,
      random: this.random,
      notes: this.#notes,
      start: (name) => backupServer(name, this),
      // Frozen pods are thawed until another server leads.
      isLeadersOwn: (what) => what === 'patch backups' || what.startsWith('exec freeze'),
    });
    this.clock = {
      nowNs: () =>
        BigInt(Math.round((START_MS + time.nowMs + (this.#trouble?.apiOffsetMs ?? 0)) * 1e6)),
    };
    this.#world = new World(time, this.random, this.clock, {
      nodes: ['node'],
      moverDeath: () => 0,
      moverDeathsMax: 0,
      fenceMs: 40_000,
      reclaimPolicy: 'Delete',
    });
    this.store = this.#world.store;
    this.#contents = fill(this.#world, new Random(seed + 1));
    this.#uid = this.#contents.backup.metadata.uid;
    const serving = { problems: this.#notes.problems, isOrphaned: () => this.#isDeleted };
    serveUploads(this.#world, this.#contents, serving);
    serveFiles(this.#world, serving);
    this.bucket.onChange = (key, by) => {
      this.#bucketChanged(key, by);
    };
    this.store.watch(BACKUPS, {}, this.store.version, (type, object) => {
      this.#backupChanged(type, object as unknown as Backup);
    });
    const { isCalm = false, killsAt = [], isDeleted = false, isWriteOnce = false } = settings;
    this.isWriteOnce = isWriteOnce;
    const most = [1, 8, 25][new Random(seed + 2).below(3)] ?? 1;
    this.#deleteAtMs = isDeleted ? new Random(seed + 3).between(0, most * MINUTE_MS) : Infinity;
    this.#killsAt = [...killsAt];
    this.#trouble = new Trouble({
      time,
      random: this.random,
      bucket: this.bucket,
      isCalm,
      servers: () => this.#crew.servers,
      note: (what) => {
        this.#notes.count(what);
      },
    });
  }

  get weather(): Weather {
    return this.#trouble?.weather ?? CALM;
  }

  async run(): Promise<Course<End>> {
    this.#crew.start();
    this.#crew.start();
    this.time.after(TURN_MS, () => {
      this.#act();
    });
    await this.time.run(OVER_MS, () => this.time.nowMs > (this.#overAtMs ?? Infinity) + SETTLE_MS);
    if (this.#isDeleted) this.#checkNothingStays();
    else if (this.#overAtMs === undefined) {
      this.#notes.problem(
        `the backup is ${this.#phase || 'new'} after ${OVER_MS / MINUTE_MS} minutes`,
      );
    }
    await Promise.all(this.#checks);
    const isWhole = this.#overAtMs !== undefined && !this.#isDeleted;
    const end = isWhole ? await this.#end() : undefined;
    this.#crew.killAll();
    this.#checkPuts();
    if (this.#isDeleted) this.#checkCommands();
    else this.#checkCluster();
    if (this.#expected && end) this.#compare(this.#expected, end);
    const { problems, counts } = this.#notes;
    return { problems, counts, turns: this.#turns, end };
  }

  say(line: string): void {
    this.#notes.say(line);
  }

  get #phase(): string {
    if (this.#isDeleted) return 'deleted';
    const { status } = this.store.get(BACKUPS, NAMESPACE, BACKUP);
    return (status as { phase?: string } | undefined)?.phase ?? '';
  }

  onTurn(server: ServerProcess, what: string): boolean {
    if (what === `list ${this.#journal}: done`) {
      this.#seenChains.set(
        server,
        this.#chains().map((keys) => keys.join()),
      );
    }
    if (!server.isLeading || this.#phase === '' || / leases(: done)?$|^watch /.test(what))
      return false;
    this.say(`${server.name}: ${what}`);
    const isRunning = this.#phase === 'InProgress';
    if (isRunning) this.#turns++;
    const [at] = this.#killsAt;
    if (at !== undefined) {
      if (!isRunning || this.#turns < at) return false;
      this.#killsAt.shift();
      this.#turns = 0;
    } else {
      // Kills after the run are rare, because the test is about the run.
      const isSpared = !isRunning && !this.#isDeleted && this.random.chance(0.7);
      if (isSpared || this.#trouble?.kills() !== true) return false;
    }
    if (this.#isDeleted) this.#notes.count('kills after the deletion');
    else this.#notes.count(isRunning ? 'kills while InProgress' : 'kills after the run');
    this.#crew.replace(server);
    return true;
  }

  onEnd(server: ServerProcess, error: unknown): void {
    this.#crew.ended(server, error);
  }

  onWrite(server: ServerProcess, what: string): void {
    this.#crew.checkWrite(server, what);
  }

  onTake(item: KubeObject, backup: Backup): void {
    if ((backup.status as { phase?: string } | undefined)?.phase !== 'InProgress') return;
    const { apiVersion = '', kind = '', metadata } = item;
    const { namespace = '', name } = metadata;
    const isStored = this.#recorded().items.some(
      ({ k, ns, n }) => k === `${apiVersion}/${kind}` && ns === namespace && n === name,
    );
    if (isStored) this.#notes.problem(`${kind} ${namespace}/${name} is taken again`);
  }

  onExec(pod: string, command: string): () => void {
    const isOf = ({ k = 'v1/Pod', ns, n }: { k?: string; ns: string; n: string }): boolean =>
      k === 'v1/Pod' && `${ns}/${n}` === pod;
    const { items, thawed } = this.#recorded();
    // After a deletion, thaws are not recorded any more.
    const isKnown = command === 'freeze' ? items.some(isOf) : !this.#isDeleted && thawed.some(isOf);
    if (isKnown) this.#notes.problem(`${command} is run again in ${pod}`);
    return () => {
      this.say(`${command} in ${pod}`);
      this.#commands.set(pod, [...(this.#commands.get(pod) ?? []), command]);
    };
  }

  get #journal(): string {
    return journalFolder(BACKUP, this.#uid);
  }

  /** The valid segments, one chain for each possible last try: processes may share a number. */
  #chains(): string[][] {
    const folder = this.#journal;
    const tries = Map.groupBy(this.bucket.keys(folder), (key) =>
      key.slice(folder.length).split('-').slice(0, 2).join('-'),
    );
    const begun = [...tries].filter(([, [head]]) => head?.endsWith(HEAD) === true);
    const last =
      begun
        .map(([name]) => name.split('-')[0] ?? '')
        .sort()
        .at(-1) ?? '';
    const chains = begun
      .filter(([name]) => name.startsWith(last))
      .map(([, keys]) => [...(this.#recordsOf(keys[0])?.includes ?? []), ...keys]);
    const most = Math.max(0, ...chains.map(({ length }) => length));
    return chains.filter(({ length }) => length === most);
  }

  #recordsOf(key = ''): SegmentRecords | undefined {
    const bytes = this.bucket.objects.get(key);
    const known =
      this.#decoded.get(key) ?? (bytes && decodeSegment(bytes, key, recordsSchema).records);
    if (known) this.#decoded.set(key, known);
    return known;
  }

  #recorded(): { items: JournalItem[]; thawed: { k: string; ns: string; n: string }[] } {
    const [chain = []] = this.#chains();
    const records = chain.flatMap((key) => this.#recordsOf(key) ?? []);
    return {
      items: records.flatMap(({ items }) => items),
      thawed: records.flatMap(({ thawed }) => thawed),
    };
  }

  /** A try continues from all segments that it listed. */
  #checkHead(key: string, by: Life): void {
    const includes = this.#recordsOf(key)?.includes ?? [];
    const seen = this.#seenChains.get(by) ?? [];
    if (includes.length === 0 && seen.length === 0) return;
    if (seen.includes(includes.join())) return;
    this.#notes.problem(
      `${key} goes on from ${includes.length} segments, and not from what was there`,
    );
  }

  #act(): void {
    if (this.time.nowMs > this.#deleteAtMs) this.#delete();
    this.#trouble?.act();
    this.time.after(TURN_MS, () => {
      this.#act();
    });
  }

  #delete(): void {
    if (this.#isDeleted || this.#overAtMs !== undefined) {
      if (this.#isDeleted) this.#look();
      return;
    }
    const { status } = this.store.get(BACKUPS, NAMESPACE, BACKUP);
    this.#deletedPhase = (status as { phase?: string } | undefined)?.phase ?? 'new';
    this.#notes.count(`deletions of a Backup that is ${this.#deletedPhase}`);
    this.#isDeleted = true;
    this.store.delete(BACKUPS, NAMESPACE, BACKUP);
    for (const resource of [DATA_UPLOADS, POD_VOLUME_BACKUPS]) {
      for (const { metadata } of this.store.list(resource)) {
        collectOwned(this.#world, resource, metadata.name);
      }
    }
  }

  /** The course is over when nothing is left for a while. */
  #look(): void {
    const isClean = this.#trouble?.isOver === true && this.#staying().length === 0;
    if (!isClean) this.#overAtMs = undefined;
    else this.#overAtMs ??= this.time.nowMs;
  }

  /** Remaining objects of a deleted Backup. */
  #staying(): string[] {
    const kinds = [
      ...[VOLUME_SNAPSHOTS, VOLUME_SNAPSHOT_CONTENTS, DATA_UPLOADS, POD_VOLUME_BACKUPS],
    ] as Resource<KubeObject>[];
    const objects = kinds.flatMap((resource) =>
      this.store.list(resource).map(({ metadata }) => `${resource.kind} ${metadata.name}`),
    );
    const notes = this.store.list(CONFIG_MAPS, { namespace: NAMESPACE });
    const { size } = this.#world.snapshots;
    return [
      ...objects,
      ...notes.map(({ metadata }) => `ConfigMap ${metadata.name}`),
      ...(this.#isKept ? [] : this.bucket.keys(`backups/${BACKUP}/`)),
      ...(size > 0 ? [`${size} snapshots of the storage`] : []),
    ];
  }

  /**
   * True if the files had a final phase at the deletion: they stay, and the sync imports the backup
   * again. With versions, this holds for a while before the seal.
   */
  get #isKept(): boolean {
    if (!this.isWriteOnce || this.#deletedPhase?.startsWith('Finalizing') !== true) return false;
    const bytes = this.bucket.objects.get(`backups/${BACKUP}/velero-backup.json`);
    return bytes !== undefined && /"phase": ?"(Completed|PartiallyFailed)"/.test(String(bytes));
  }

  #checkNothingStays(): void {
    for (const each of this.#staying()) this.#notes.problem(`${each} stays of the deleted Backup`);
  }

  #checkPuts(): void {
    if (!this.isWriteOnce) return;
    for (const key of this.bucket.putTwice) this.#notes.problem(`${key} was put twice`);
  }

  #checkCommands(): void {
    for (const pod of this.#contents.pods) {
      const commands = this.#commands.get(pod) ?? [];
      const isLeft = commands.length > 0 && commands.at(-1) !== 'thaw';
      if (isLeft) this.#notes.problem(`${pod} is left as: ${commands.join(', ')}`);
    }
    for (const violation of this.#world.violations) this.#notes.problem(violation);
    if (this.#notes.isTold)
      this.say(`seed ${this.#seed}: ${JSON.stringify([...this.#notes.counts])}`);
  }

  #backupChanged(type: string, { status }: Backup): void {
    if (type === 'DELETED' && !this.#isDeleted) this.#notes.problem('the Backup was deleted');
    if (this.#isDeleted) return;
    const { phase = '', failureReason } = (status ?? {}) as Record<string, string>;
    if (!/^(Completed|PartiallyFailed|Failed|FailedValidation)$/.test(phase)) return;
    if (this.#overAtMs !== undefined) return;
    this.#overAtMs = this.time.nowMs;
    this.say(`the Backup is ${phase}`);
    if (phase.startsWith('Failed')) this.#notes.problem(`${phase}: ${failureReason ?? ''}`);
    else this.#check(`when the Backup became ${phase}`, phase);
  }

  #bucketChanged(key: string, by: Life): void {
    if (key.startsWith(journalsFolder(BACKUP))) {
      if (key.endsWith(HEAD) && this.bucket.objects.has(key)) this.#checkHead(key, by);
      return;
    }
    if (this.#isDeleted || !this.bucket.objects.has(`backups/${BACKUP}/velero-backup.json`)) return;
    this.#check(`after ${key} was changed`);
  }

  /** A reader must find a complete backup at any time. */
  #check(when: string, phase?: string): void {
    const seen = new MemoryBucket();
    for (const [key, bytes] of this.bucket.objects) seen.objects.set(key, bytes);
    const look = async (): Promise<void> => {
      // Velero must be able to read a finished backup without versions.
      const isVelero = /^(Completed|PartiallyFailed)$/.test(phase ?? '');
      const end = await endOf(isVelero ? seen : bucketOf(seen, this));
      if (phase !== undefined && end.phase !== phase) {
        this.#notes.problem(`${when} its file said ${end.phase}`);
      }
      const isOver = /^(Completed|PartiallyFailed)$/.test(end.phase);
      if (isOver && this.#expected) this.#compare(this.#expected, end, `${when}: `);
    };
    this.#checks.push(
      look().catch((error: unknown) => {
        this.#notes.problem(`${when} the backup could not be read: ${messageOf(error)}`);
      }),
    );
  }

  async #end(): Promise<End | undefined> {
    const seen = new MemoryBucket();
    for (const [key, bytes] of this.bucket.objects) seen.objects.set(key, bytes);
    try {
      return await endOf(seen);
    } catch (error) {
      this.#notes.problem(`the backup cannot be read: ${messageOf(error)}`);
      return undefined;
    }
  }

  #compare(expected: End, end: End, when = ''): void {
    for (const key of ['phase', 'results', 'resourceList', 'items'] as const) {
      if (end[key] !== expected[key]) {
        this.#notes.problem(`${when}${key} is ${end[key]} and not ${expected[key]}`);
      }
    }
    for (const key of ['operations', 'volumes'] as const) {
      const [now, before] = [end[key].join('\n'), expected[key].join('\n')];
      if (now !== before) this.#notes.problem(`${when}${key} are\n${now}\nand not\n${before}`);
    }
    for (const [path, text] of end.files) {
      const before = expected.files.get(path);
      if (before === undefined) this.#notes.problem(`${when}${path} is in the archive`);
      else if (before !== text)
        this.#notes.problem(`${when}${path} is\n${text}\nand not\n${before}`);
    }
    for (const path of expected.files.keys()) {
      if (!end.files.has(path)) this.#notes.problem(`${when}${path} is not in the archive`);
    }
  }

  #checkCluster(): void {
    for (const pod of this.#contents.pods) {
      const commands = this.#commands.get(pod) ?? [];
      if (commands.at(-1) !== 'thaw')
        this.#notes.problem(`${pod} is left as: ${commands.join(', ')}`);
      if (!this.#expected && commands.join() !== 'freeze,thaw') {
        this.#notes.problem(`${pod} had ${commands.join()}`);
      }
    }
    const left = (resource: typeof VOLUME_SNAPSHOTS | typeof VOLUME_SNAPSHOT_CONTENTS): void => {
      for (const { metadata } of this.store.list(resource)) {
        this.#notes.problem(
          `${resource.kind} ${metadata.namespace ?? ''}/${metadata.name} is left`,
        );
      }
    };
    left(VOLUME_SNAPSHOTS);
    left(VOLUME_SNAPSHOT_CONTENTS);
    // Moved snapshots are in the repository. Otherwise each claim keeps one snapshot.
    const { claims, isMoved, files } = this.#contents;
    const { size } = this.#world.snapshots;
    if (size !== (isMoved ? 0 : claims.length))
      this.#notes.problem(`the storage has ${size} snapshots`);
    const uploads = this.store.list(DATA_UPLOADS).length;
    if (uploads !== (isMoved ? claims.length : 0))
      this.#notes.problem(`there are ${uploads} DataUploads`);
    const copies = this.store.list(POD_VOLUME_BACKUPS).length;
    if (copies !== files.length) this.#notes.problem(`there are ${copies} PodVolumeBackups`);
    const repositories = this.store.list(BACKUP_REPOSITORIES).length;
    if (repositories !== new Set(files.map((pod) => pod.split('/')[0])).size) {
      this.#notes.problem(`there are ${repositories} BackupRepositories`);
    }
    for (const violation of this.#world.violations) this.#notes.problem(violation);
    if (this.#notes.isTold)
      this.say(`seed ${this.#seed}: ${JSON.stringify([...this.#notes.counts])}`);
  }
}

/** Throws if any part is unreadable. */
async function endOf(bucket: Bucket): Promise<End> {
  const archive = await new BackupArchive(bucket).open(BACKUP);
  const files = new Map<string, string>();
  for await (const { path, bytes } of readTarball(archive.read('contents'), 'contents')) {
    const [place, text] = withoutNames(path, bytes.toString());
    if (files.has(place)) throw new Error(`${place} is twice in the archive`);
    files.set(place, text);
  }
  const operations = await archive.itemOperations(backupOperationSchema);
  const volumes = await archive.volumeInfos();
  const results = await archive.results();
  const { phase = '', progress } = (archive.metadata.status ?? {}) as {
    phase?: string;
    progress?: { itemsBackedUp?: number };
  };
  return {
    phase,
    files,
    operations: operations
      .map(({ spec, status }) =>
        [spec.operationID.replace(TIME, ''), status.phase, status.error].join(' '),
      )
      .sort(),
    volumes: volumes
      .map(({ pvcNamespace, pvcName, snapshotDataMovementInfo, result }) =>
        [pvcNamespace, pvcName, snapshotDataMovementInfo?.operationID, result].join(' '),
      )
      .sort(),
    results: JSON.stringify(results, (_, each: unknown) =>
      Array.isArray(each) ? each.sort() : each,
    ),
    resourceList: JSON.stringify(await archive.resourceList()).replaceAll(CONTENT, 'content'),
    items: progress?.itemsBackedUp ?? 0,
  };
}

/** The end of an operation's ID. */
const TIME = /\/[\d-]+T[\d:]+Z$/;
const CONTENT = /snapcontent-[\da-f-]+/g;
const MADE = /^resources\/(datauploads|podvolumebackups|volumesnapshots|volumesnapshotcontents)\./;

/** Removes generated UIDs, times and names from objects that the backup itself makes. */
function withoutNames(path: string, text: string): [path: string, text: string] {
  if (!MADE.test(path)) return [path, text];
  const { metadata, spec, status } = JSON.parse(text) as Loose;
  const { name = metadata.name } = (spec.volumeSnapshotRef ?? {}) as { name?: string };
  const { phase, readyToUse } = status ?? {};
  const kept = { name, labels: metadata.labels, finalizers: metadata.finalizers };
  const { source } = spec.volumeSnapshotRef ? { source: undefined } : spec;
  return [path.replace(CONTENT, name), JSON.stringify({ ...kept, source, phase, readyToUse })];
}
