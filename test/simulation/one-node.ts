import { Agent } from '../../src/agent/index.ts';
import { type Clock, silentLogger } from '../../src/base/index.ts';
import { type KubeObject, PODS, type Resource } from '../../src/kube/index.ts';
import { type Loose, NAMESPACE } from './objects.ts';
import { SimulatedClient, type Weather } from './simulated-client.ts';
import { Random, VirtualTime } from './virtual-time.ts';
import { World, type WorldOptions } from './world.ts';

const START_MS = Date.UTC(2026, 0, 1);
const CALM: Weather = { refused: 0, lost: 0, cut: 0, latencyMs: 10, watchLagMs: 50 };
export const NODE = 'node';

/** A cluster of one node, whose agent moves one volume at a time, in virtual time. */
export class OneNode implements Disposable {
  readonly time = new VirtualTime(1);
  readonly world: World;
  /** The offset of the API server's clock. */
  aheadMs = 0;
  /** Logs of data movers that the agent has copied. */
  readonly logs: string[] = [];
  readonly #abort = new AbortController();

  constructor(options: Partial<WorldOptions> = {}) {
    this.time.install();
    const random = new Random(1);
    const clock: Clock = {
      nowNs: () => BigInt(Math.round((START_MS + this.time.nowMs + this.aheadMs) * 1e6)),
    };
    this.world = new World(this.time, random, clock, {
      nodes: [NODE],
      moverDeath: () => 0,
      moverDeathsMax: 0,
      fenceMs: 40_000,
      reclaimPolicy: 'Delete',
      ...options,
    });
    this.world.store.create(PODS, NAMESPACE, {
      metadata: { name: 'agent', labels: { role: 'node-agent' } },
      spec: { nodeName: NODE, containers: [] },
    } as never);
    this.world.patch(PODS, NAMESPACE, 'agent', { status: { phase: 'Running' } });
    const client = new SimulatedClient(this.world.store, this.time, clock, random, () => CALM);
    const agent = new Agent({
      client: client.asClient,
      logger: silentLogger,
      writeLog: (text) => this.logs.push(text),
      node: NODE,
      namespace: NAMESPACE,
      dataMovers: new Set(['', 'velero']),
      agentSelector: 'role=node-agent',
      concurrency: 1,
      servesPodVolumes: true,
      prepareTimeoutMs: 1_800_000,
      restartsMax: 3,
      stallTimeoutMs: 3_600_000,
      takeoverMs: 60_000,
      fenceMs: 40_000,
      prepareQueueLength: 0,
      exposer: {
        daemonSet: 'node-agent',
        config: { loadAffinity: [], backupPvc: {}, ignoreDelayBinding: false, podResources: {} },
      },
    });
    void agent.run(this.#abort.signal).catch(() => undefined);
  }

  statusOf(resource: Resource<KubeObject>, name: string): { phase?: string; message?: string } {
    return this.world.find(resource, name, NAMESPACE)?.status ?? {};
  }

  hostingPods(): Loose[] {
    return this.world.store.list(PODS, {
      namespace: NAMESPACE,
      labelSelector: '!role',
    }) as unknown as Loose[];
  }

  [Symbol.dispose](): void {
    this.#abort.abort();
    this.time[Symbol.dispose]();
  }
}
