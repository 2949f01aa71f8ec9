import { Registry } from 'prom-client';
import {
  type Clock,
  CodedError,
  type Logger,
  rfc3339Seconds,
  silentLogger,
} from '../../src/base/index.ts';
import { Store, type Stored } from '../../src/dev/api-server/store.ts';
import {
  BACKUP_REPOSITORIES,
  BACKUP_STORAGE_LOCATIONS,
  type BackupRepository,
  CONFIG_MAPS,
  DEPLOYMENTS,
  type Job,
  JOBS,
  type KubeObject,
  type NewObject,
  PASSWORD_SECRET,
  type Resource,
  SECRETS,
} from '../../src/kube/index.ts';
import type { CallOptions } from '../../src/kube/client/client.ts';
import { PASSWORD_KEY } from '../../src/repository-access/index.ts';
import { RepositoryController, Server } from '../../src/server/index.ts';
import { JOB_MARK, REPOSITORY_LABEL } from '../../src/server/repositories/maintenance/job.ts';
import { claimOf } from '../../src/server/repositories/maintenance/job-outline.ts';
import { roughWeather, SimulatedClient, type Weather } from './simulated-client.ts';
import { Random, VirtualTime } from './virtual-time.ts';

const NAMESPACE = 'velero';
const START_MS = Date.UTC(2026, 0, 1);
const MINUTE_MS = 60_000;
const CHAOS_MS = 90 * MINUTE_MS;
const CALM_MS = 40 * MINUTE_MS;
const FREQUENCY_MS = 10 * MINUTE_MS;
const CALM: Weather = { refused: 0, lost: 0, cut: 0, latencyMs: 20, watchLagMs: 50 };
const CUT: Weather = { ...CALM, refused: 1 };

export interface Course {
  readonly problems: string[];
  /** Jobs that did work. */
  readonly worked: number;
  /** Late Jobs of a server, which did nothing. */
  readonly late: number;
  readonly servers: number;
}

/** Two servers that are cut off, suspended and killed, with clock jumps. Returns violations. */
export async function simulateMaintenance(
  seed: number,
  tell?: (line: string) => void,
): Promise<Course> {
  const random = new Random(seed);
  using time = new VirtualTime(seed);
  time.install();
  let serverOffsetMs = 0;
  /** The API server's clock. */
  const clock: Clock = {
    nowNs: () => BigInt(Math.round((START_MS + time.nowMs + serverOffsetMs) * 1e6)),
  };
  const world = new MaintenanceWorld(time, random, clock, tell);
  const rough = roughWeather(random);
  let weather = rough;
  let servers = 0;
  const alive: SimulatedServer[] = [];
  const start = (): void => {
    alive.push(
      new SimulatedServer(`server-${servers++}`, world, time, clock, random, () => weather, tell),
    );
  };
  start();
  start();
  const isOver = (): boolean => time.nowMs >= CHAOS_MS + CALM_MS;
  const act = (): void => {
    const isCalm = time.nowMs >= CHAOS_MS;
    world.step();
    if (isCalm && weather !== CALM) {
      weather = CALM;
      serverOffsetMs = 0;
      for (const server of alive) server.heal();
    }
    if (!isCalm) {
      if (random.chance(0.004)) {
        const jump = random.between(-30, 30) * MINUTE_MS;
        tell?.(`${time.nowMs}: the API server's clock jumps by ${Math.round(jump / 1000)} s`);
        serverOffsetMs += jump;
      }
      for (const server of alive) server.disturb();
      if (random.chance(0.003) && alive.length > 0) {
        const [killed] = alive.splice(random.below(alive.length), 1);
        killed?.kill();
        start();
      }
    }
    if (!isOver()) time.after(500, act);
  };
  time.after(500, act);
  await time.run(CHAOS_MS + CALM_MS, () => false);
  world.checkEnd(time.nowMs);
  for (const server of alive) server.kill();
  return { problems: world.problems, worked: world.worked, late: world.late, servers };
}

/** Some requests for Jobs get no answer, and take effect later. */
class LateClient extends SimulatedClient {
  /** Undefined if all requests arrive in time. */
  late: ((effect: () => void) => boolean) | undefined;
  #world: MaintenanceWorld | undefined;

  of(world: MaintenanceWorld): this {
    this.#world = world;
    return this;
  }

  override create<T extends KubeObject>(
    resource: Resource<T>,
    object: NewObject<T>,
    options: CallOptions = {},
  ): Promise<T> {
    const effect = (): void => {
      try {
        this.#world?.store.create(resource, object.metadata.namespace, object as unknown as Stored);
      } catch {
        // A Job of that name exists.
      }
    };
    if (resource.kind === JOBS.kind && this.late?.(effect) === true) {
      return Promise.reject(new CodedError('KUBE_UNAVAILABLE', 'no answer', { retry: 'backoff' }));
    }
    return super.create(resource, object, options);
  }
}

class SimulatedServer {
  readonly #name: string;
  readonly #time: VirtualTime;
  readonly #random: Random;
  readonly #client: LateClient;
  readonly #abort = new AbortController();
  readonly #tell: ((line: string) => void) | undefined;
  #cutUntilMs = 0;
  #frozenUntilMs = 0;
  #wallOffsetMs = 0;

  constructor(
    name: string,
    world: MaintenanceWorld,
    time: VirtualTime,
    serverClock: Clock,
    random: Random,
    weather: () => Weather,
    tell: ((line: string) => void) | undefined,
  ) {
    this.#name = name;
    this.#time = time;
    this.#random = random;
    this.#tell = tell;
    const own: Clock = {
      nowNs: () => BigInt(Math.round((START_MS + time.nowMs + this.#wallOffsetMs) * 1e6)),
      monotonicNs: () => BigInt(Math.round(time.nowMs * 1e6)),
    };
    const here = (): Weather => ({
      ...(time.nowMs < this.#cutUntilMs ? CUT : weather()),
      frozenMs: Math.max(0, this.#frozenUntilMs - time.nowMs),
    });
    this.#client = new LateClient(world.store, time, serverClock, random, here).of(world);
    this.#client.late = (effect) => {
      if (time.nowMs > CHAOS_MS || !random.chance(0.2)) return false;
      time.after(random.between(1, 60) * MINUTE_MS, effect);
      return true;
    };
    const client = this.#client.asClient;
    const logger: Logger = tell ? tracing(name, time, tell) : silentLogger;
    const common = { client, logger, namespace: NAMESPACE, host: name };
    const registry = new Registry();
    const repositories = new RepositoryController({
      ...common,
      registry,
      connection: {
        openStorage: () => Promise.reject(new Error('nothing is opened in the simulation')),
        directory: '/nowhere',
        defaultCredentials: () => undefined,
        frequency: '10m0s',
        configMap: undefined,
      },
      jobs: {
        configMap: 'jobs',
        jobsMax: 2,
        deployment: 'longshore-server',
        command: ['/velero'],
        logLevel: 'info',
        logFormat: 'text',
      },
    });
    const server = new Server({ ...common, registry, clock: own, controllers: [repositories] });
    server.run(this.#abort.signal).catch((error: unknown) => {
      // A killed process reports no end.
      if (this.#abort.signal.aborted) return;
      world.problems.push(`${name} ended: ${String(error)}`);
    });
  }

  disturb(): void {
    const { nowMs } = this.#time;
    const say = (what: string): void => this.#tell?.(`${nowMs}: ${this.#name} ${what}`);
    if (this.#random.chance(0.002)) {
      this.#cutUntilMs = nowMs + this.#random.between(1, 900) * 1000;
      say(`is cut off until ${Math.round(this.#cutUntilMs)}`);
    }
    if (this.#random.chance(0.002)) {
      this.#frozenUntilMs = nowMs + this.#random.between(1, 700) * 1000;
      say(`stands still until ${Math.round(this.#frozenUntilMs)}`);
    }
    if (this.#random.chance(0.002)) {
      this.#wallOffsetMs = this.#random.between(-60, 60) * MINUTE_MS;
      say(`has another time by ${Math.round(this.#wallOffsetMs / 1000)} s`);
    }
  }

  heal(): void {
    this.#cutUntilMs = 0;
    this.#frozenUntilMs = 0;
  }

  kill(): void {
    this.#tell?.(`${this.#time.nowMs}: ${this.#name} is killed`);
    this.#client.kill();
    this.#abort.abort(new Error('killed'));
  }
}

/** Simulates repositories, the Job controller and kubelets. */
class MaintenanceWorld {
  readonly store: Store;
  readonly problems: string[] = [];
  worked = 0;
  late = 0;
  readonly #time: VirtualTime;
  readonly #random: Random;
  readonly #clock: Clock;
  readonly #tell: ((line: string) => void) | undefined;
  readonly #known = new Set<string>();
  /** UIDs of Jobs with a working pod, by repository. */
  readonly #working = new Map<string, Set<string>>();

  constructor(
    time: VirtualTime,
    random: Random,
    clock: Clock,
    tell: ((line: string) => void) | undefined,
  ) {
    this.#time = time;
    this.#random = random;
    this.#tell = tell;
    this.#clock = clock;
    this.store = new Store(clock);
    const create = (resource: Resource<KubeObject>, object: object): void => {
      this.store.create(resource, NAMESPACE, object as Stored);
    };
    create(BACKUP_STORAGE_LOCATIONS, {
      metadata: { name: 'default', namespace: NAMESPACE },
      spec: { provider: 'velero.io/fs', config: { fspath: '/bucket' } },
    });
    // Repositories exist, so their password does, too.
    create(SECRETS, {
      metadata: { name: PASSWORD_SECRET, namespace: NAMESPACE },
      data: { [PASSWORD_KEY]: Buffer.from('simulated').toString('base64') },
    });
    // Old Jobs are deleted at once, so that their names are free.
    create(CONFIG_MAPS, {
      metadata: { name: 'jobs', namespace: NAMESPACE },
      data: { global: '{"keepLatestMaintenanceJobs": 0}' },
    });
    create(DEPLOYMENTS, {
      metadata: { name: 'longshore-server', namespace: NAMESPACE },
      spec: { template: { spec: { containers: [{ name: 'server', image: 'longshore' }] } } },
    });
    for (let i = 0; i < 4; i++) {
      create(BACKUP_REPOSITORIES, {
        metadata: { name: `app-${i}-default-kopia`, namespace: NAMESPACE },
        spec: {
          volumeNamespace: `app-${i}`,
          backupStorageLocation: 'default',
          repositoryType: 'kopia',
          maintenanceFrequency: '10m0s',
        },
        status: { phase: 'Ready' },
      });
    }
  }

  get #jobs(): Job[] {
    return this.store.list(JOBS, { namespace: NAMESPACE }) as unknown as Job[];
  }

  #repository(label: string): BackupRepository {
    return this.store.get(BACKUP_REPOSITORIES, NAMESPACE, label) as unknown as BackupRepository;
  }

  /** Called every half second. */
  step(): void {
    for (const job of this.#jobs) {
      if (this.#known.has(job.metadata.uid)) continue;
      this.#known.add(job.metadata.uid);
      // The Job has a pod.
      if (!job.status?.conditions) {
        this.store.update(JOBS, { ...job, status: { active: 1 } }, 'status');
      }
      this.#time.after(this.#random.between(500, 20_000), () => {
        this.#begin(job);
      });
    }
  }

  #isThere({ metadata }: Job): boolean {
    return this.#jobs.some(({ metadata: { uid } }) => uid === metadata.uid);
  }

  #begin(job: Job): void {
    if (!this.#isThere(job)) return;
    const name = job.metadata.labels?.[REPOSITORY_LABEL] ?? '';
    const claim = claimOf(this.#repository(name));
    const { uid } = job.metadata;
    if (claim?.name !== job.metadata.name || (claim.uid ?? uid) !== uid) {
      this.late++;
      this.#tell?.(`${this.#time.nowMs}: ${job.metadata.name} is not named`);
      this.#end(job, false);
      return;
    }
    const working = this.#working.get(name) ?? new Set();
    this.#working.set(name, working.add(uid));
    this.worked++;
    this.#tell?.(`${this.#time.nowMs}: ${job.metadata.name} works`);
    if (working.size > 1) this.problems.push(`${this.#time.nowMs}: two Jobs work on ${name}`);
    const isCalm = this.#time.nowMs >= CHAOS_MS;
    const isDeleted = !isCalm && this.#random.chance(0.05);
    this.#time.after(this.#random.between(1000, 240_000), () => {
      working.delete(uid);
      if (!this.#isThere(job)) return;
      if (isDeleted) {
        this.#tell?.(`${this.#time.nowMs}: somebody deletes ${job.metadata.name}`);
        this.store.delete(JOBS, NAMESPACE, job.metadata.name);
      } else this.#end(job, isCalm || this.#random.chance(0.85));
    });
  }

  #end({ metadata: { name } }: Job, isSuccess: boolean): void {
    const job = this.store.get(JOBS, NAMESPACE, name) as unknown as Job;
    const type = isSuccess ? 'Complete' : 'Failed';
    const status = {
      ...(isSuccess ? { succeeded: 1, completionTime: this.#now() } : { failed: 1 }),
      conditions: [{ type, status: 'True', lastTransitionTime: this.#now() }],
    };
    this.store.update(JOBS, { ...job, status }, 'status');
  }

  #now(): string {
    // Like the Job controller, by the clock of the control plane.
    return rfc3339Seconds(this.#clock.nowNs());
  }

  /** Checks the final state, after some time without trouble. */
  checkEnd(nowMs: number): void {
    for (const object of this.store.list(BACKUP_REPOSITORIES, { namespace: NAMESPACE })) {
      const { metadata, status } = object as unknown as BackupRepository;
      const last = Date.parse(status?.lastMaintenanceTime ?? '');
      const agoMs = START_MS + nowMs - last;
      // Allows for two slots, four repositories, runs of up to four minutes, and retries.
      if (!(agoMs < 3 * FREQUENCY_MS)) {
        this.problems.push(`${metadata.name} was maintained ${Math.round(agoMs / 1000)} s ago`);
      }
      const starts = (status?.recentMaintenance ?? []).map(({ startTimestamp }) => startTimestamp);
      if (new Set(starts).size !== starts.length || starts.length > 25) {
        this.problems.push(`history of ${metadata.name}: ${starts.join(' ')}`);
      }
    }
    const ours = this.#jobs.filter(({ metadata }) => metadata.labels?.[JOB_MARK] !== undefined);
    if (ours.length > 4 * 4) this.problems.push(`${ours.length} Jobs are left`);
  }
}

function tracing(name: string, time: VirtualTime, tell: (line: string) => void): Logger {
  const write = (fields: object, message: string): void => {
    tell(`${Math.round(time.nowMs)}: ${name}: ${message} ${JSON.stringify(fields)}`);
  };
  return { debug: () => undefined, info: write, warn: write, error: write };
}
