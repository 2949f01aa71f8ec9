import { Registry } from 'prom-client';
import { type Clock, CodedError, silentLogger } from '../../src/base/index.ts';
import { type BlobId, BlobNotFoundError, type BlobStorage } from '../../src/blob/index.ts';
import { Store, type Stored } from '../../src/dev/api-server/store.ts';
import {
  BACKUP_STORAGE_LOCATIONS,
  BACKUPS,
  type BackupStorageLocation,
  DOWNLOAD_REQUESTS,
  type DownloadRequest,
  type KubeObject,
  type ObjectRef,
  type Resource,
  SERVER_STATUS_REQUESTS,
  type ServerStatusRequest,
} from '../../src/kube/index.ts';
import type { CallOptions, DeleteOptions } from '../../src/kube/client/client.ts';
import {
  DownloadController,
  LocationController,
  Server,
  StatusRequestController,
} from '../../src/server/index.ts';
import { roughWeather, SimulatedClient, type Weather } from './simulated-client.ts';
import { Random, VirtualTime } from './virtual-time.ts';

const NAMESPACE = 'velero';
const START_MS = Date.UTC(2026, 0, 1);
const MINUTE_MS = 60_000;
const SETTLE_MS = 8 * MINUTE_MS;
const CALM: Weather = { refused: 0, lost: 0, cut: 0, latencyMs: 20, watchLagMs: 50 };
const CUT: Weather = { ...CALM, refused: 1 };

/** The current behaviour of a bucket. */
export type BucketState = 'well' | 'slow' | 'away' | 'hangs' | 'foreign';

export interface RequestsCourse {
  readonly problems: string[];
  /** Requests that got a URL. */
  readonly answered: number;
  readonly validations: number;
  /** The greatest number of concurrent checks of buckets. */
  readonly checksAtOnceMax: number;
  readonly leaders: number;
}

export interface RequestsSettings {
  readonly locations: number;
  /** Time with trouble: servers stop or are cut off, clocks jump, and buckets change. */
  readonly chaosMs: number;
  readonly calmMs: number;
  /** The initial state of a location's bucket. */
  readonly bucket?: (index: number) => BucketState;
  /** The longest time between two validations of a healthy location without trouble. */
  readonly staleMsMax: number;
}

/**
 * Two servers validate locations and answer requests. The same seed is the same course. `problems`:
 * writes of a server that does not lead, wrong phases after the trouble, and requests without an
 * answer or a deletion.
 */
export async function simulateRequests(
  seed: number,
  settings: RequestsSettings,
  tell?: (line: string) => void,
): Promise<RequestsCourse> {
  const { chaosMs, calmMs } = settings;
  const random = new Random(seed);
  using time = new VirtualTime(seed);
  time.install();
  let serverOffsetMs = 0;
  const clock: Clock = {
    nowNs: () => BigInt(Math.round((START_MS + time.nowMs + serverOffsetMs) * 1e6)),
  };
  const world = new World(time, random, clock, settings);
  const rough = roughWeather(random);
  let weather = chaosMs > 0 ? rough : CALM;
  let servers = 0;
  const start = (): void => {
    world.servers.push(
      new OneServer(`server-${servers++}`, world, time, clock, random, () => weather),
    );
  };
  start();
  start();
  const isOver = (): boolean => time.nowMs >= chaosMs + calmMs;
  const act = (): void => {
    const isCalm = time.nowMs >= chaosMs;
    if (isCalm && weather !== CALM) {
      tell?.(`${time.nowMs}: calm`);
      weather = CALM;
      serverOffsetMs = 0;
      for (const server of world.servers) server.heal();
    }
    if (!isCalm) {
      if (random.chance(0.004)) {
        serverOffsetMs += random.between(-30, 30) * MINUTE_MS;
        tell?.(`${time.nowMs}: the API server's clock is off by ${serverOffsetMs}`);
      }
      for (const server of world.servers) server.disturb();
      if (random.chance(0.003)) {
        const [killed] = world.servers.splice(random.below(world.servers.length), 1);
        killed?.kill();
        start();
      }
      world.disturb();
    }
    // A suspended server still works on its queue, and notices a silent watch only later.
    world.ask(time.nowMs >= chaosMs + (chaosMs > 0 ? SETTLE_MS : 0));
    if (!isOver()) time.after(500, act);
  };
  time.after(500, act);
  await time.run(chaosMs + calmMs, () => false);
  world.checkEnd();
  for (const server of world.servers) server.kill();
  const { problems, answered, validations, checksAtOnceMax } = world;
  return { problems, answered, validations, checksAtOnceMax, leaders: world.leaders.size };
}

/** Records the writer when it decides to write. */
class ListeningClient extends SimulatedClient {
  onWrite: ((resource: Resource<KubeObject>, ref: ObjectRef, patch?: object) => void) | undefined;

  override patch<T extends KubeObject>(
    resource: Resource<T>,
    ref: ObjectRef,
    patch: object,
    options: CallOptions & { subresource?: string } = {},
  ): Promise<T> {
    this.onWrite?.(resource, ref, patch);
    return super.patch(resource, ref, patch, options);
  }

  override delete<T extends KubeObject>(
    resource: Resource<T>,
    ref: ObjectRef,
    options: DeleteOptions = {},
  ): Promise<boolean> {
    this.onWrite?.(resource, ref);
    return super.delete(resource, ref, options);
  }
}

class OneServer {
  readonly name: string;
  readonly server: Server;
  readonly #time: VirtualTime;
  readonly #random: Random;
  readonly #client: ListeningClient;
  readonly #abort = new AbortController();
  #cutUntilMs = 0;
  #frozenUntilMs = 0;
  #wallOffsetMs = 0;

  constructor(
    name: string,
    world: World,
    time: VirtualTime,
    serverClock: Clock,
    random: Random,
    weather: () => Weather,
  ) {
    this.name = name;
    this.#time = time;
    this.#random = random;
    const own: Clock = {
      nowNs: () => BigInt(Math.round((START_MS + time.nowMs + this.#wallOffsetMs) * 1e6)),
      monotonicNs: () => BigInt(Math.round(time.nowMs * 1e6)),
    };
    const here = (): Weather => ({
      ...(time.nowMs < this.#cutUntilMs ? CUT : weather()),
      frozenMs: Math.max(0, this.#frozenUntilMs - time.nowMs),
    });
    this.#client = new ListeningClient(world.store, time, serverClock, random, here);
    this.#client.onWrite = (resource, ref, patch) => {
      if (resource.group === 'velero.io') world.noteWrite(this, resource, ref, patch);
    };
    const client = this.#client.asClient;
    const registry = new Registry();
    const common = { client, logger: silentLogger, namespace: NAMESPACE, host: name };
    const stores = {
      directory: '/nowhere',
      defaultCredentials: () => undefined,
      openStorage: (location: string) => Promise.resolve(world.open(location)),
    };
    this.server = new Server({
      ...common,
      registry,
      clock: own,
      controllers: [
        new LocationController({
          ...common,
          registry,
          stores,
          validationFrequencyMs: MINUTE_MS,
          defaultLocation: 'l0',
        }),
        new DownloadController({ ...common, stores }),
        new StatusRequestController({
          ...common,
          serverVersion: 'v1.18.3',
          plugins: () => Promise.resolve([{ name: 'longshore.io/pvc', kind: 'ItemBlockAction' }]),
        }),
      ],
    });
    this.server.run(this.#abort.signal).catch((error: unknown) => {
      // A killed process reports no end.
      if (this.#abort.signal.aborted) return;
      world.problems.push(`${name} ended: ${String(error)}`);
    });
  }

  disturb(): void {
    const { nowMs } = this.#time;
    if (this.#random.chance(0.002)) {
      this.#cutUntilMs = nowMs + this.#random.between(1, 300) * 1000;
    }
    if (this.#random.chance(0.002)) {
      this.#frozenUntilMs = nowMs + this.#random.between(1, 300) * 1000;
    }
    if (this.#random.chance(0.002)) {
      this.#wallOffsetMs = this.#random.between(-60, 60) * MINUTE_MS;
    }
  }

  heal(): void {
    this.#cutUntilMs = 0;
    this.#frozenUntilMs = 0;
  }

  kill(): void {
    this.#client.kill();
    this.#abort.abort(new Error('killed'));
  }
}

class World {
  readonly store: Store;
  readonly servers: OneServer[] = [];
  readonly leaders = new Set<string>();
  readonly problems: string[] = [];
  answered = 0;
  validations = 0;
  checksAtOnceMax = 0;
  readonly #time: VirtualTime;
  readonly #random: Random;
  readonly #clock: Clock;
  readonly #settings: RequestsSettings;
  readonly #buckets: BucketState[];
  #checks = 0;
  #asked = 0;
  /** Time and location of requests without trouble. */
  readonly #open = new Map<string, { readonly atMs: number; readonly location: number }>();
  readonly #statusAsked = new Map<string, number>();

  constructor(time: VirtualTime, random: Random, clock: Clock, settings: RequestsSettings) {
    this.#time = time;
    this.#random = random;
    this.#clock = clock;
    this.#settings = settings;
    this.store = new Store(clock);
    const { bucket = () => 'well' as const, locations } = settings;
    this.#buckets = Array.from({ length: locations }, (_, i) => bucket(i));
    for (let i = 0; i < locations; i++) {
      this.#create(BACKUP_STORAGE_LOCATIONS, {
        metadata: { name: `l${i}`, namespace: NAMESPACE },
        spec: {
          provider: 'aws',
          objectStorage: { bucket: `bucket-${i}` },
          ...(i % 3 === 1 && { default: true }),
        },
      });
      this.#create(BACKUPS, {
        metadata: { name: `b${i}`, namespace: NAMESPACE },
        spec: { storageLocation: `l${i}` },
      });
    }
  }

  #create(resource: Resource<KubeObject>, object: object): void {
    this.store.create(resource, NAMESPACE, object as Stored);
  }

  noteWrite(
    writer: OneServer,
    { kind }: Resource<KubeObject>,
    { name }: ObjectRef,
    patch?: object,
  ): void {
    this.leaders.add(writer.name);
    const { status } = (patch ?? {}) as { status?: { phase?: string } };
    if (kind === BACKUP_STORAGE_LOCATIONS.kind && status) this.validations++;
    const when = `${Math.round(this.#time.nowMs)}: ${writer.name} writes ${kind} ${name}`;
    if (!writer.server.election.isLeading) this.problems.push(`${when} and does not lead`);
    const other = this.servers.find(
      (server) => server !== writer && server.server.election.isLeading,
    );
    if (other) this.problems.push(`${when} while ${other.name} leads`);
  }

  disturb(): void {
    for (let i = 0; i < this.#buckets.length; i++) {
      if (!this.#random.chance(0.003)) continue;
      const states = ['well', 'slow', 'away', 'hangs', 'foreign'] as const;
      this.#buckets[i] = states[this.#random.below(states.length)] ?? 'well';
    }
  }

  /** Makes requests of clients, and checks the answers. */
  ask(isCalm: boolean): void {
    if (this.#random.chance(0.05)) {
      const location = this.#random.below(this.#buckets.length);
      const name = `b${location}-${this.#asked++}`;
      this.#create(DOWNLOAD_REQUESTS, {
        metadata: { name, namespace: NAMESPACE },
        spec: { target: { kind: 'BackupLog', name: `b${location}` } },
      });
      if (isCalm) this.#open.set(name, { atMs: this.#time.nowMs, location });
    }
    if (this.#random.chance(0.01)) {
      const name = `velero-cli-${this.#asked++}`;
      this.#create(SERVER_STATUS_REQUESTS, { metadata: { name, namespace: NAMESPACE } });
      if (isCalm) this.#statusAsked.set(name, this.#time.nowMs);
    }
    for (const [name, { atMs, location }] of this.#open) {
      const found = this.#list<DownloadRequest>(DOWNLOAD_REQUESTS).find(
        ({ metadata }) => metadata.name === name,
      );
      const waitedMs = this.#time.nowMs - atMs;
      if (found?.status?.downloadURL !== undefined) {
        this.answered++;
        const wanted = `https://bucket-${location}/backups/b${location}/b${location}-logs.gz`;
        if (found.status.downloadURL !== wanted) {
          this.problems.push(`${name} got ${found.status.downloadURL}`);
        }
      } else if (found && waitedMs < this.#patienceMs(location)) continue;
      else if (this.#isSigned(location)) {
        this.problems.push(`${name} got no URL within ${Math.round(waitedMs / 1000)} s`);
      }
      this.#open.delete(name);
    }
    for (const [name, atMs] of this.#statusAsked) {
      const found = this.#list<ServerStatusRequest>(SERVER_STATUS_REQUESTS).find(
        ({ metadata }) => metadata.name === name,
      );
      if (found?.status?.serverVersion === 'v1.18.3') this.#statusAsked.delete(name);
      else if (this.#time.nowMs - atMs > 15_000) {
        this.problems.push(`${name} was not answered`);
        this.#statusAsked.delete(name);
      }
    }
  }

  /** The CLI's patience. A hanging bucket is checked first, and a new leader needs 15 s. */
  readonly #patienceMs = (location: number): number =>
    this.#buckets[location] === 'hangs' ? 45_000 : 30_000;
  /** Signing needs no bucket. */
  readonly #isSigned = (location: number): boolean => this.#buckets[location] !== undefined;

  #list<T extends KubeObject>(resource: Resource<T>): T[] {
    return this.store.list(resource, { namespace: NAMESPACE }) as unknown as T[];
  }

  open(location: string): BlobStorage {
    const bucket = new URL(location).host;
    const index = Number(bucket.slice('bucket-'.length));
    const state = (): BucketState => this.#buckets[index] ?? 'well';
    const answer = async (signal: AbortSignal | undefined): Promise<void> => {
      this.#checks++;
      this.checksAtOnceMax = Math.max(this.checksAtOnceMax, this.#checks);
      try {
        const ms = { well: 50, foreign: 50, slow: 8000, away: 200, hangs: Infinity }[state()];
        await new Promise<void>((resolve, reject) => {
          const timer = ms === Infinity ? undefined : this.#time.after(ms, resolve);
          const aborted = (): void => {
            if (timer !== undefined) this.#time.clear(timer);
            reject(signal?.reason as Error);
          };
          if (signal?.aborted === true) aborted();
          else signal?.addEventListener('abort', aborted, { once: true });
        });
      } finally {
        this.#checks--;
      }
      if (state() === 'away') {
        throw new CodedError('STORAGE_UNREACHABLE', 'nobody is there', { retry: 'backoff' });
      }
    };
    return {
      displayName: bucket,
      hasObjectLock: false,
      async *listFolders(_: string, { signal }: { signal?: AbortSignal } = {}) {
        await answer(signal);
        yield 'backups';
        if (state() === 'foreign') yield 'photos';
      },
      async getMetadata(id: BlobId, { signal }: { signal?: AbortSignal } = {}) {
        await answer(signal);
        throw new BlobNotFoundError(id);
      },
      signedUrl: (id: BlobId) => Promise.resolve(`https://${bucket}/${id}`),
      close: () => Promise.resolve(),
    } as unknown as BlobStorage;
  }

  checkEnd(): void {
    const { staleMsMax } = this.#settings;
    const nowMs = Number(this.#clock.nowNs() / 1_000_000n);
    const locations = this.#list<BackupStorageLocation>(BACKUP_STORAGE_LOCATIONS);
    locations.forEach(({ metadata, status, spec }) => {
      const state = this.#buckets[Number(metadata.name.slice(1))] ?? 'well';
      const isWell = state === 'well' || state === 'slow';
      if (status?.phase !== (isWell ? 'Available' : 'Unavailable')) {
        this.problems.push(`${metadata.name} is ${status?.phase ?? ''}, its bucket ${state}`);
      }
      if (spec?.default === true && metadata.name !== this.#defaultAtEnd) {
        this.problems.push(`${metadata.name} is a default`);
      }
      const agoMs = nowMs - Date.parse(status?.lastValidationTime ?? '');
      if (state === 'well' && !(agoMs < staleMsMax)) {
        this.problems.push(`${metadata.name} was validated ${Math.round(agoMs / 1000)} s ago`);
      }
    });
    for (const resource of [DOWNLOAD_REQUESTS, SERVER_STATUS_REQUESTS]) {
      for (const { metadata } of this.#list<KubeObject>(resource)) {
        const ageMs = nowMs - Date.parse(metadata.creationTimestamp);
        if (ageMs > 22 * MINUTE_MS) {
          this.problems.push(`${metadata.name} is still there after ${ageMs / 1000} s`);
        }
      }
    }
  }

  /** All were made in one second, so the first by name stays. */
  get #defaultAtEnd(): string {
    return this.#settings.locations > 1 ? 'l1' : 'l0';
  }
}
