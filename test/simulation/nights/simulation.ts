import { RestoreArchive } from '../../../src/archive/index.ts';
import { messageOf } from '../../../src/base/index.ts';
import {
  BACKUPS,
  DATA_DOWNLOADS,
  DATA_UPLOADS,
  DELETE_BACKUP_REQUESTS,
  BACKUP_STORAGE_LOCATIONS,
  type KubeObject,
  LEASES,
  POD_VOLUME_BACKUPS,
  POD_VOLUME_RESTORES,
  PODS,
  PVCS,
  PVS,
  type Resource,
  RESTORES,
  SECRETS,
} from '../../../src/kube/index.ts';
import { MemoryBucket } from '../../support/memory-bucket.ts';
import { type Loose, NAMESPACE, volumeHandle } from '../objects.ts';
import { SharedBucket } from '../servers/bucket.ts';
import { CourseNotes, inVirtualTime, type Tell } from '../servers/course.ts';
import { Random, type VirtualTime } from '../virtual-time.ts';
import { type Claim, claimsOf, Cluster, MAPPED, SPACES } from './cluster.ts';

const MINUTE_MS = 60_000;
const DAY_MS = 24 * 60 * MINUTE_MS;
/** Limit for a backup or a restore, under any trouble. */
const OVER_MS = 16 * 60 * MINUTE_MS;
const SETTLE_MS = 3 * MINUTE_MS;
const NIGHTS_MAX = 30;
const FINAL = /^(Completed|PartiallyFailed|Failed|FailedValidation)$/;
const RESTORE_NAME = 'velero.io/restore-name';
const FORGED = 'forged by a tenant';
/** Objects that servers and agents work on. A second copy would be worked on again. */
const WORK = [
  ...[BACKUPS, RESTORES, DELETE_BACKUP_REQUESTS],
  ...[DATA_UPLOADS, DATA_DOWNLOADS, POD_VOLUME_BACKUPS, POD_VOLUME_RESTORES],
] as readonly Resource<KubeObject>[];

export interface Settings {
  /** Without kills and outages. */
  readonly isCalm?: boolean;
}

export interface Outcome {
  readonly problems: string[];
  readonly counts: ReadonlyMap<string, number>;
}

/** Simulates a cluster that backs up all namespaces each night, and sometimes restores a night. */
export const simulateNights = (
  seed: number,
  settings: Settings = {},
  tell?: Tell,
): Promise<Outcome> =>
  inVirtualTime(seed, (time) => new NightsCourse(seed, settings, time, tell).run());

/** A backup's expected contents by `namespace/name`; undefined after a concurrent write. */
type Night = Map<string, string | undefined>;

interface RestorePlan {
  readonly night: string;
  readonly spaces: readonly string[] | undefined;
  readonly isUpdate: boolean;
  readonly isInPlace: boolean;
  readonly isMapped: boolean;
}

class NightsCourse {
  readonly #seed: number;
  readonly #time: VirtualTime;
  readonly #random: Random;
  readonly #notes: CourseNotes;
  readonly #isCalm: boolean;
  readonly #bucket = new SharedBucket();
  readonly #repository = new Map<string, string>();
  readonly #claims: readonly Claim[];
  readonly #clusters: Cluster[] = [];
  readonly #home: Cluster;
  readonly #nights = new Map<string, Night>();
  /** Expiration of Backups, which must not be lost before. */
  readonly #expiresMs = new Map<string, number>();
  /** Backups that a user has deleted. */
  readonly #unwanted = new Set<string>();
  /** Names of backups by the ID of each snapshot that they hold. */
  readonly #owners = new Map<string, string>();
  /** `kind name` of all clusters' objects. */
  readonly #made = new Set<string>();
  /** True during a restore in the home cluster: the contents of volumes are then not modelled. */
  #isRestoring = false;
  /** Problems that were reported once. */
  readonly #told = new Set<string>();
  #restores = 0;

  constructor(seed: number, { isCalm = false }: Settings, time: VirtualTime, tell?: Tell) {
    this.#seed = seed;
    this.#time = time;
    this.#random = new Random(seed + 1);
    this.#isCalm = isCalm;
    this.#notes = new CourseNotes(time, tell);
    this.#claims = claimsOf(this.#random);
    this.#repository.set('forged', FORGED);
    this.#home = this.#cluster('home');
    this.#home.fill(this.#claims);
    this.#bucket.onChange = (key) => {
      const [, name] = /^backups\/([^/]+)\/velero-backup\.json$/.exec(key) ?? [];
      if (name === undefined || this.#bucket.objects.has(key)) return;
      // A run that could not store all files removes them, and stores them again later.
      const isOver = FINAL.test(this.#phase(this.#home, BACKUPS, name));
      if (isOver && !this.#isToGo(name)) {
        this.#notes.problem(`backup ${name} is deleted from the bucket`);
      }
    };
    this.#home.store.watch(BACKUPS, {}, this.#home.store.version, (type, { metadata, status }) => {
      if (type === 'ADDED') this.#nightFalls(metadata);
      const { expiration } = (status ?? {}) as { expiration?: string };
      if (expiration !== undefined) this.#expiresMs.set(metadata.name, Date.parse(expiration));
    });
  }

  async run(): Promise<Outcome> {
    this.#home.start();
    let isDone = false;
    const course = this.#course().then(
      () => (isDone = true),
      (error: unknown) => {
        this.#notes.problem(`the course ended: ${messageOf(error)}`);
        isDone = true;
      },
    );
    const isOver = await this.#time.run(30 * DAY_MS, () => isDone);
    if (!isOver) this.#notes.problem('the course does not end');
    else await course;
    this.#home.stop();
    for (const violation of this.#home.world.violations) this.#notes.problem(violation);
    const { problems, counts } = this.#notes;
    if (this.#notes.isTold) this.#notes.say(`seed ${this.#seed}: ${JSON.stringify([...counts])}`);
    return { problems, counts };
  }

  #cluster(name: string): Cluster {
    const cluster = new Cluster({
      name,
      time: this.#time,
      random: new Random(this.#seed + this.#made.size),
      bucket: this.#bucket,
      repository: this.#repository,
      notes: this.#notes,
      reclaimPolicy: this.#random.chance(0.7) ? 'Delete' : 'Retain',
      onStored: (id, backup) => this.#owners.set(id, backup),
      forget: (_access, ids) => {
        const forgotten = ids.filter((id) => this.#repository.has(id));
        for (const id of forgotten) this.#forget(id);
        const missing = ids.filter((id) => !forgotten.includes(id));
        return Promise.resolve({ forgotten, missing });
      },
    });
    this.#clusters.push(cluster);
    this.#watchWork(cluster);
    return cluster;
  }

  #forget(id: string): void {
    const owner = this.#owners.get(id);
    this.#repository.delete(id);
    if (owner === undefined || this.#isToGo(owner)) return;
    this.#notes.problem(`snapshot ${id} of backup ${owner} is forgotten`);
  }

  /** Each cluster may delete expired backups, and clocks may be ahead. */
  get #latestMs(): number {
    return Math.max(...this.#clusters.map(({ latestMs }) => latestMs));
  }

  #isToGo(backup: string): boolean {
    if (this.#unwanted.has(backup)) return true;
    return this.#latestMs >= (this.#expiresMs.get(backup) ?? Infinity);
  }

  /** Checks that each work object is created once, and that no restore changes it. */
  #watchWork(cluster: Cluster): void {
    const { store } = cluster;
    for (const resource of WORK) {
      store.watch(resource, { namespace: NAMESPACE }, store.version, (type, object) => {
        const { metadata, spec } = object as unknown as Loose;
        const what = `${resource.kind} ${metadata.name}`;
        const isOwn = (metadata.ownerReferences ?? []).length > 0;
        // The DataDownload failed before its claim was made, and a resumed server makes a new one.
        const isFailed =
          resource === DATA_DOWNLOADS && (object as unknown as Loose).status?.phase === 'Failed';
        if (type === 'DELETED' && isFailed) this.#made.delete(what);
        if (type === 'ADDED' && resource === DELETE_BACKUP_REQUESTS) this.#asked(spec);
        if (type === 'ADDED') {
          // The sync creates a backup's objects in each cluster.
          const isSynced =
            cluster !== this.#home && ['Backup', 'PodVolumeBackup'].includes(resource.kind);
          if (this.#made.has(what) && !isSynced) {
            this.#notes.problem(`${what} is made again in ${cluster.name}`);
          }
          this.#made.add(what);
        }
        // A Backup has the labels of its Schedule, which a restore may have created.
        const isMarked = metadata.labels?.[RESTORE_NAME] !== undefined && resource !== BACKUPS;
        if (isMarked && !isOwn && type !== 'DELETED') {
          this.#isRestored(resource, metadata, cluster);
        }
      });
    }
    for (const resource of [LEASES, SECRETS] as Resource<KubeObject>[]) {
      store.watch(resource, { namespace: NAMESPACE }, store.version, (type, { metadata }) => {
        if (type === 'DELETED' || metadata.labels?.[RESTORE_NAME] === undefined) return;
        this.#isRestored(resource, metadata, cluster);
      });
    }
  }

  /** A backup that has expired once may be deleted, even if clocks are set back later. */
  #asked({ backupName }: { readonly backupName?: string }): void {
    if (backupName !== undefined && this.#isToGo(backupName)) this.#unwanted.add(backupName);
  }

  #isRestored({ kind }: Resource<KubeObject>, { name }: { name: string }, cluster: Cluster): void {
    const what = `${kind} ${name} is restored in ${cluster.name}`;
    if (!this.#told.has(what)) this.#notes.problem(what);
    this.#told.add(what);
  }

  #rest(ms: number): Promise<void> {
    return new Promise((resolve) => this.#time.after(ms, resolve));
  }

  async #until(what: string, isSo: () => boolean, limitMs = OVER_MS): Promise<boolean> {
    const untilMs = this.#time.nowMs + limitMs;
    while (!isSo()) {
      if (this.#time.nowMs > untilMs) {
        this.#notes.problem(`after ${limitMs / MINUTE_MS} minutes: not ${what}`);
        return false;
      }
      await this.#rest(2000);
    }
    return true;
  }

  /** Called when a Backup is created. Records the contents of its volumes. */
  #nightFalls({ name, uid }: KubeObject['metadata']): void {
    if (this.#nights.has(name)) return;
    this.#notes.count('nights');
    const night: Night = new Map();
    const { volumes } = this.#home.world;
    // If clocks are set, two nights may overlap.
    const isNew = !this.#isRestoring && !this.#isNight(name);
    for (const [id, handle] of this.#volumes(this.#home)) {
      if (isNew) volumes.set(handle, `${id} in ${name}`);
      const isUnknown = this.#isRestoring || this.#isStarting(id);
      night.set(id, isUnknown ? undefined : volumes.get(handle));
    }
    this.#nights.set(name, night);
    this.#forge(name, uid);
  }

  /** Whether the volume's pod does not run yet, so that the volume cannot be read. */
  #isStarting(id: string): boolean {
    const [namespace = '', name = ''] = id.split('/');
    const pod = this.#home.world.find(PODS, `pod-${name}`, namespace);
    return pod !== undefined && pod.status?.phase !== 'Running';
  }

  /** Forges objects that a tenant may create in its own namespace, with names that sort first. */
  #forge(backup: string, backupUid: string): void {
    const victim = this.#claims[this.#random.below(this.#claims.length)];
    if (!victim) return;
    const stolen = [...this.#owners.keys()].filter((id) => this.#repository.has(id));
    const id = this.#random.chance(0.5)
      ? 'forged'
      : (stolen[this.#random.below(stolen.length)] ?? 'forged');
    const labels = { 'velero.io/backup-name': backup, 'velero.io/backup-uid': backupUid };
    const progress = { totalBytes: 10, bytesDone: 10 };
    const status = { phase: 'Completed', snapshotID: id, progress };
    this.#home.create(DATA_UPLOADS, 'tenant', {
      metadata: { name: `${backup}-0`, labels },
      spec: {
        sourceNamespace: victim.namespace,
        sourcePVC: victim.name,
        snapshotType: 'CSI',
        csiSnapshot: { volumeSnapshot: 'x', storageClass: 'simulated' },
        backupStorageLocation: 'default',
        operationTimeout: '10m0s',
      },
      status,
    });
    this.#home.create(POD_VOLUME_BACKUPS, 'tenant', {
      metadata: {
        name: `${backup}-0`,
        labels,
        annotations: { 'velero.io/pvc-name': victim.name },
      },
      spec: {
        node: 'node',
        volume: 'v',
        backupStorageLocation: 'default',
        uploaderType: 'kopia',
        repoIdentifier: '',
        pod: { kind: 'Pod', namespace: victim.namespace, name: `pod-${victim.name}` },
      },
      status,
    });
  }

  /** Handles of volumes by `namespace/name` of their claims. */
  #volumes({ store, world }: Cluster): Map<string, string> {
    return new Map(
      store.list(PVCS).flatMap(({ metadata, spec, status }) => {
        const { namespace = '', name } = metadata;
        const { volumeName = '' } = spec as { volumeName?: string };
        const volume = world.find(PVS, volumeName);
        const isBound = (status as { phase?: string } | undefined)?.phase === 'Bound';
        return volume && isBound ? [[`${namespace}/${name}`, volumeHandle(volume)] as const] : [];
      }),
    );
  }

  #contents(cluster: Cluster): Map<string, string | undefined> {
    const handles = [...this.#volumes(cluster)];
    return new Map(handles.map(([id, handle]) => [id, cluster.world.volumes.get(handle)]));
  }

  #phase(cluster: Cluster, resource: Resource<KubeObject>, name: string): string {
    const { phase } = cluster.world.find(resource, name, NAMESPACE)?.status ?? {};
    return typeof phase === 'string' ? phase : '';
  }

  /** Whether another backup is in progress. */
  #isNight(but?: string): boolean {
    return this.#home.store.list(BACKUPS).some(({ metadata, status }) => {
      const { phase = '' } = (status ?? {}) as { phase?: string };
      return metadata.name !== but && !FINAL.test(phase) && phase !== 'Deleting';
    });
  }

  /** Nights that can be restored. */
  #restorable(cluster: Cluster): string[] {
    const found = cluster.store.list(BACKUPS) as unknown as Loose[];
    const soonMs = this.#latestMs + 90 * MINUTE_MS;
    return found
      .filter(({ metadata: { name }, status }) => {
        const isGood = String(status?.phase) === 'Completed';
        const isLeft = (this.#expiresMs.get(name) ?? 0) > soonMs;
        const night = [...(this.#nights.get(name)?.values() ?? [])];
        const isKnown = night.some((content) => content !== undefined);
        return isGood && isLeft && isKnown && !this.#unwanted.has(name);
      })
      .map(({ metadata }) => metadata.name);
  }

  async #course(): Promise<void> {
    const most = [4, 8, 8, 15, NIGHTS_MAX][this.#random.below(5)] ?? 4;
    const nights = 2 + this.#random.below(most - 1);
    for (let i = 0; i < nights; i++) {
      const seen = this.#nights.size;
      if (!this.#isCalm && this.#random.chance(0.15)) this.#home.trouble();
      const isNight = (): boolean => this.#nights.size > seen && !this.#isNight();
      if (!(await this.#until('another night', isNight))) return;
      await this.#day();
    }
    for (let i = 0; i < 2; i++) await this.#restoreAtHome();
    await this.#visit();
  }

  /** Runs the events between two nights. */
  async #day(): Promise<void> {
    const random = this.#random;
    if (random.chance(0.2)) {
      this.#notes.count('kills of agents');
      this.#home.agent.kill();
    }
    if (random.chance(0.1)) await this.#deleteNight();
    if (random.chance(0.1)) await this.#regret();
    if (random.chance(0.3)) await this.#restoreAtHome();
    if (random.chance(0.25)) this.#forgetRestores();
    if (random.chance(0.05)) await this.#visit();
  }

  #request(backup: string): string {
    const name = `${backup}-${this.#notes.counts.get('deletions') ?? 0}`;
    this.#notes.count('deletions');
    const uid = this.#home.world.find(BACKUPS, backup, NAMESPACE)?.metadata.uid;
    this.#home.create(DELETE_BACKUP_REQUESTS, NAMESPACE, {
      metadata: {
        name,
        labels: { 'velero.io/backup-name': backup, 'velero.io/backup-uid': uid },
      },
      spec: { backupName: backup },
    });
    return name;
  }

  async #deleteNight(): Promise<void> {
    const found = this.#restorable(this.#home);
    const backup = found[this.#random.below(found.length)];
    if (backup === undefined || found.length < 3) return;
    this.#unwanted.add(backup);
    this.#request(backup);
    await this.#until(
      `backup ${backup} deleted`,
      () => !this.#home.world.find(BACKUPS, backup, NAMESPACE),
    );
  }

  /** A deletion that is refused by a read-only location. The user then drops it. */
  async #regret(): Promise<void> {
    const found = this.#restorable(this.#home);
    const backup = found[this.#random.below(found.length)];
    if (backup === undefined) return;
    const setMode = (accessMode: string): void => {
      const { world } = this.#home;
      world.patch(BACKUP_STORAGE_LOCATIONS, NAMESPACE, 'default', { spec: { accessMode } });
    };
    setMode('ReadOnly');
    const request = this.#request(backup);
    await this.#until('the request refused', () => {
      return this.#phase(this.#home, DELETE_BACKUP_REQUESTS, request) === 'Processed';
    });
    setMode('ReadWrite');
    this.#notes.count('deletions that were refused');
    const isSeen = this.#random.chance(0.7);
    const after = isSeen ? this.#nights.size : -1;
    const clear = async (): Promise<void> => {
      // Waits until a later backup has it.
      await this.#until('a night after it', () => {
        return this.#nights.size > after && !this.#isNight();
      });
      this.#home.world.delete(DELETE_BACKUP_REQUESTS, NAMESPACE, request);
    };
    void clear();
  }

  /** `velero restore delete` for finished restores. */
  #forgetRestores(): void {
    for (const { metadata } of this.#home.store.list(RESTORES)) {
      if (!FINAL.test(this.#phase(this.#home, RESTORES, metadata.name))) continue;
      this.#notes.count('Restores that are deleted');
      this.#home.store.delete(RESTORES, NAMESPACE, metadata.name);
    }
  }

  async #restoreAtHome(): Promise<void> {
    const random = this.#random;
    await this.#until('no backup under way', () => !this.#isNight());
    const found = this.#restorable(this.#home);
    const night = found[random.below(found.length)];
    if (night === undefined) return;
    this.#isRestoring = true;
    const isWhole = random.chance(0.4);
    const isMapped = !isWhole && random.chance(0.2);
    const space = isMapped ? 'app-b' : (SPACES[random.below(2)] ?? '');
    const isInPlace = random.chance(0.4);
    const spaces = isWhole ? undefined : [space];
    const lost = random.chance(0.5) ? (spaces ?? SPACES) : [];
    for (const each of lost) {
      this.#home.deleteNamespace(isMapped ? MAPPED : each);
      this.#notes.count('namespaces deleted');
    }
    if (isInPlace && random.chance(0.7)) {
      // A user does this first, so that no pod uses the volumes.
      for (const { namespace, name } of this.#claims) {
        this.#home.world.delete(PODS, namespace, `pod-${name}`);
      }
    }
    await this.#rest(MINUTE_MS);
    if (!this.#isCalm && random.chance(0.25)) this.#home.trouble();
    const isUpdate = random.chance(0.5);
    await this.#restore(this.#home, { night, spaces, isUpdate, isInPlace, isMapped });
    for (const claim of this.#claims) {
      const id = `${claim.namespace}/${claim.name}`;
      if (this.#volumes(this.#home).has(id)) this.#home.runPod(claim);
    }
    this.#isRestoring = false;
  }

  /** A new cluster imports the bucket, and restores the applications. */
  async #visit(): Promise<void> {
    this.#notes.count('visits of another cluster');
    const away = this.#cluster(`away-${this.#notes.counts.get('visits of another cluster')}`);
    away.pauseSchedules();
    away.start();
    if (!this.#isCalm && this.#random.chance(0.3)) away.trouble();
    const found = this.#restorable(this.#home);
    const night = found[this.#random.below(found.length)];
    if (night !== undefined) {
      const isThere = await this.#until(
        `backup ${night} in another cluster`,
        () => this.#phase(away, BACKUPS, night) === 'Completed' || this.#isToGo(night),
      );
      const isWhole = this.#random.chance(0.5);
      const spaces = isWhole ? undefined : [SPACES[this.#random.below(2)] ?? ''];
      const plan = { night, spaces, isUpdate: this.#random.chance(0.3), isInPlace: false };
      if (isThere && !this.#isToGo(night)) await this.#restore(away, { ...plan, isMapped: false });
    }
    away.stop();
    for (const violation of away.world.violations) this.#notes.problem(violation);
  }

  async #restore(cluster: Cluster, plan: RestorePlan): Promise<void> {
    const { night, spaces, isUpdate, isInPlace, isMapped } = plan;
    const name = `r${++this.#restores}`;
    this.#notes.count(
      `restores: ${spaces ? 'one namespace' : 'whole'}${isInPlace ? ' in place' : ''}`,
    );
    const targets = this.#targetsOf(plan);
    const before = this.#contents(cluster);
    const there = new Set(
      cluster.store
        .list(PVCS)
        .map(({ metadata }) => `${metadata.namespace ?? ''}/${metadata.name}`),
    );
    const handles = this.#volumes(cluster);
    const free = new Set(
      this.#claims
        .map(({ namespace, name }) => ({ namespace, name, id: `${namespace}/${name}` }))
        .filter(({ namespace, name }) => !cluster.store.has(PODS, namespace, `pod-${name}`))
        .map(({ id }) => id),
    );
    cluster.create(RESTORES, NAMESPACE, {
      metadata: { name },
      spec: {
        backupName: night,
        ...(spaces && { includedNamespaces: spaces }),
        ...(isUpdate && { existingResourcePolicy: 'update' }),
        ...(isInPlace && { existingVolumeDataPolicy: 'full' }),
        ...(isMapped && { namespaceMapping: { 'app-b': MAPPED } }),
      },
    });
    this.#notes.say(`restore ${name}: ${JSON.stringify(plan)}`);
    const isOver = await this.#until(`restore ${name} over`, () =>
      FINAL.test(this.#phase(cluster, RESTORES, name)),
    );
    if (!isOver) return;
    // Waits: a wrong action may come late.
    await this.#rest(SETTLE_MS);
    const phase = this.#phase(cluster, RESTORES, name);
    this.#notes.count(`restores that are ${phase}`);
    const told = await this.#resultsOf(name);
    for (const line of told) this.#notes.say(line);
    const isGone = this.#isToGo(night);
    if (phase.startsWith('Failed')) {
      const reason = String(cluster.world.find(RESTORES, name, NAMESPACE)?.status?.failureReason);
      if (!isGone) this.#notes.problem(`restore ${name} of ${night} is ${phase}: ${reason}`);
      return;
    }
    const now = this.#contents(cluster);
    const isNamed = (claim: string): boolean =>
      told.some((line) => line.includes(claim.split('/').at(-1) ?? ''));
    for (const [id, wanted] of targets) {
      const found = now.get(id);
      const is = `${id} holds ${found ?? 'nothing'}`;
      const how = `after restore ${name} of ${night}, which is ${phase},`;
      if (!there.has(id)) {
        if (found === wanted || wanted === undefined) this.#notes.count('volumes restored');
        else this.#notes.problem(`${how} ${is} and not ${wanted}`);
        continue;
      }
      if (found === wanted && wanted !== before.get(id)) this.#notes.count('volumes in place');
      if (found === wanted || wanted === undefined) continue;
      if (found !== before.get(id) && this.#isSettled(cluster, id, handles.get(id))) {
        this.#notes.problem(`${how} ${is} and neither ${wanted} nor what it held`);
      } else if (isInPlace && free.has(id) && phase === 'Completed') {
        this.#notes.problem(
          `${how} ${is} and not ${wanted}, although nothing uses it: ${told.join('; ')}`,
        );
      } else if (!isNamed(id))
        this.#notes.problem(`${how} ${is} and not ${wanted}, without a word`);
    }
    for (const [id, was] of before) {
      if (targets.has(id) || !this.#isSettled(cluster, id, handles.get(id))) continue;
      if (now.get(id) !== was) {
        this.#notes.problem(
          `restore ${name} of ${night} changed ${id} from ${was} to ${now.get(id)}`,
        );
      }
    }
  }

  /** Whether the claim still has its old volume. */
  #isSettled(cluster: Cluster, id: string, handle: string | undefined): boolean {
    return this.#volumes(cluster).get(id) === handle;
  }

  /** The expected content of each restored claim, by its place in the cluster. */
  #targetsOf({ night, spaces, isMapped }: RestorePlan): Night {
    const targets: Night = new Map();
    for (const [id, content] of this.#nights.get(night) ?? []) {
      const [namespace = '', name = ''] = id.split('/');
      if (spaces && !spaces.includes(namespace)) continue;
      const target = isMapped && namespace === 'app-b' ? MAPPED : namespace;
      targets.set(`${target}/${name}`, content);
    }
    return targets;
  }

  /** Errors and warnings. */
  async #resultsOf(name: string): Promise<string[]> {
    const seen = new MemoryBucket();
    for (const [key, bytes] of this.#bucket.objects) seen.objects.set(key, bytes);
    try {
      const { errors, warnings } = await new RestoreArchive(seen).results(name);
      return [errors, warnings].flatMap((lists = {}) => [
        ...[...(lists.velero ?? []), ...(lists.cluster ?? [])],
        ...Object.values(lists.namespaces ?? {}).flat(),
      ]);
    } catch (error) {
      return [messageOf(error)];
    }
  }
}
