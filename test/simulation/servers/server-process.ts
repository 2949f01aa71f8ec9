import { Registry } from 'prom-client';
import { type Clock, isCode, type Logger } from '../../../src/base/index.ts';
import { discovery as served } from '../../../src/dev/api-server/discovery.ts';
import type { Store } from '../../../src/dev/api-server/store.ts';
import type { KubeClient, KubeObject, Resource } from '../../../src/kube/index.ts';
import { unreachable } from '../../../src/kube/client/errors.ts';
import type { ListOptions } from '../../../src/kube/client/client.ts';
import { Server, type ServerController } from '../../../src/server/index.ts';
import { NAMESPACE } from '../objects.ts';
import { SimulatedClient, type Weather } from '../simulated-client.ts';
import type { Random, VirtualTime } from '../virtual-time.ts';
import type { Life, SharedBucket } from './bucket.ts';

export const START_MS = Date.UTC(2026, 0, 1);
const CUT: Pick<Weather, 'refused'> = { refused: 1 };

/** The world of servers, with callbacks that check them. */
export interface ProcessWorld {
  /** Whether no key of the location may be put twice. */
  readonly isWriteOnce: boolean;
  readonly store: Store;
  readonly bucket: SharedBucket;
  readonly time: VirtualTime;
  readonly random: Random;
  /** The clock of the API server. */
  readonly clock: Clock;
  readonly weather: Weather;
  /** Whether a client reports that a command with a lost answer may have run. */
  readonly tellsLostCommands?: boolean;
  /** Called before a command in a pod. Returns a function that runs with it. */
  onExec(pod: string, command: string): () => void;
  /** Called before each write. */
  onWrite(server: ServerProcess, what: string): void;
  /** Called before each request and after its effect. Returns true if the server dies. */
  onTurn(server: ServerProcess, what: string): boolean;
  onEnd(server: ServerProcess, error: unknown): void;
  say(line: string): void;
}

/** The client of a server, with its own requests. */
class ServerClient extends SimulatedClient {
  onAsk: (what: string) => void = () => undefined;
  onExec: (pod: string, command: string) => () => void = () => () => undefined;
  tellsLostCommands = false;

  protected override async call<R>(
    what: string,
    effect: () => R,
    signal: AbortSignal | undefined,
  ): Promise<R> {
    signal?.throwIfAborted();
    this.onAsk(what);
    return super.call(
      what,
      () => {
        const result = effect();
        this.onAsk(`${what}: done`);
        return result;
      },
      signal,
    );
  }

  async collect<T extends KubeObject, K>(
    resource: Resource<T>,
    options: ListOptions,
    take: (item: T) => readonly K[],
  ): Promise<K[]> {
    return (await this.list(resource, options)).flatMap((item) => [...take(item)]);
  }

  override raw(request?: {
    readonly path: string;
    readonly signal?: AbortSignal;
  }): Promise<unknown> {
    const { path = '', signal } = request ?? {};
    return this.call(`ask for ${path}`, () => answerTo(path), signal);
  }

  async exec(request: {
    readonly namespace: string;
    readonly pod: string;
    readonly command: readonly string[];
    readonly signal?: AbortSignal;
  }): Promise<{ stdout: string; stderr: string }> {
    const { namespace, pod, command, signal } = request;
    const run = this.onExec(`${namespace}/${pod}`, command.join(' '));
    const what = `exec ${command.join(' ')} in ${namespace}/${pod}`;
    let isRun = false;
    const effect = (): { stdout: string; stderr: string } => {
      isRun = true;
      run();
      return { stdout: '', stderr: '' };
    };
    try {
      return await this.call(what, effect, signal);
    } catch (error) {
      const isLost = isRun && isCode(error, 'KUBE_UNAVAILABLE');
      throw isLost && this.tellsLostCommands ? unreachable(what, error, true) : error;
    }
  }
}

/** Adds the definitions of custom resources, which each real server has. */
function answerTo(path: string): unknown {
  const answer = served(path) as { groups?: object[] } | undefined;
  if (path === '/apis') {
    const versions = [{ groupVersion: 'apiextensions.k8s.io/v1', version: 'v1' }];
    const group = { name: 'apiextensions.k8s.io', versions, preferredVersion: versions[0] };
    return { ...answer, groups: [...(answer?.groups ?? []), group] };
  }
  if (path !== '/apis/apiextensions.k8s.io/v1') return answer;
  const name = 'customresourcedefinitions';
  const verbs = ['create', 'delete', 'get', 'list'];
  const kind = 'CustomResourceDefinition';
  return {
    kind: 'APIResourceList',
    groupVersion: 'apiextensions.k8s.io/v1',
    resources: [{ name, singularName: '', namespaced: false, kind, verbs }],
  };
}

/** A process of `longshore server` with the given controllers. */
export class ServerProcess implements Life {
  readonly name: string;
  readonly server: Server;
  isDead = false;
  wallOffsetMs = 0;
  readonly #world: ProcessWorld;
  readonly #client: ServerClient;
  readonly #abort = new AbortController();
  #cutUntilMs = 0;
  #frozenUntilMs = 0;

  /** `controllersOf`: the controllers, for the clock of the process. */
  constructor(
    name: string,
    world: ProcessWorld,
    controllersOf: (process: ServerProcess, clock: Clock) => readonly ServerController[],
  ) {
    this.name = name;
    this.#world = world;
    const { store, time, random } = world;
    const own: Clock = {
      nowNs: () => BigInt(Math.round((START_MS + time.nowMs + this.wallOffsetMs) * 1e6)),
      monotonicNs: () => BigInt(Math.round(time.nowMs * 1e6)),
    };
    const here = (): Weather => ({
      ...world.weather,
      ...(time.nowMs < this.#cutUntilMs && CUT),
      frozenMs: this.frozenMs,
    });
    this.#client = new ServerClient(store, time, world.clock, random, here);
    this.#client.onAsk = (what) => {
      // The process may have died right before the request, which is then not sent.
      if (this.isDead) return;
      if (/^(create|update|patch|delete|exec)/.test(what) && !what.endsWith(': done')) {
        if (!/ (leases|events)$/.test(what)) world.onWrite(this, what);
      }
      this.turn(what);
    };
    this.#client.tellsLostCommands = world.tellsLostCommands === true;
    this.#client.onExec = (pod, command) => world.onExec(pod, command);
    this.server = new Server({
      client: this.#client.asClient,
      namespace: NAMESPACE,
      host: name,
      logger: this.logger,
      clock: own,
      registry: new Registry(),
      controllers: controllersOf(this, own),
    });
    this.server.run(this.#abort.signal).then(
      () => undefined,
      (error: unknown) => {
        if (!this.isDead) world.onEnd(this, error);
      },
    );
  }

  get isLeading(): boolean {
    return !this.isDead && this.server.election.isLeading;
  }

  get frozenMs(): number {
    return Math.max(0, this.#frozenUntilMs - this.#world.time.nowMs);
  }

  get latencyMs(): number {
    return this.#world.weather.latencyMs;
  }

  get trouble(): number {
    return this.#world.weather.lost;
  }

  turn(what: string): void {
    if (!this.isDead && this.#world.onTurn(this, what)) this.kill();
  }

  cut(ms: number): void {
    this.#cutUntilMs = this.#world.time.nowMs + ms;
  }

  freeze(ms: number): void {
    this.#frozenUntilMs = this.#world.time.nowMs + ms;
  }

  heal(): void {
    this.#cutUntilMs = 0;
    this.#frozenUntilMs = 0;
  }

  /** Stops all output of the process. */
  kill(): void {
    this.isDead = true;
    this.#client.kill();
    this.#abort.abort(new Error('killed'));
  }

  get client(): KubeClient {
    return this.#client.asClient;
  }

  get logger(): Logger {
    const at =
      (level: string) =>
      (fields: object, text: string): void => {
        if (!this.isDead) {
          this.#world.say(`${this.name} ${level} ${text} ${JSON.stringify(fields)}`);
        }
      };
    return { debug: () => undefined, info: at('info'), warn: at('warn'), error: at('error') };
  }
}

/** The process ends, and its kubelet starts another one. */
export const isEndOfProcess = (error: unknown): boolean => isCode(error, 'LEADERSHIP_STUCK');
