import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import * as fs from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { parseAllDocuments } from 'yaml';
import { AgentMetrics } from '../../src/agent/metrics.ts';
import { NAMESPACES } from '../../src/kube/index.ts';
import { hasRealApi, peer, type RealApi, startRealApi } from '../support/real-api.ts';

const ROOT = new URL('../../', import.meta.url).pathname;

interface Manifest {
  readonly kind: string;
  readonly metadata: { readonly name: string; readonly namespace?: string };
  readonly rules?: readonly Record<string, string[]>[];
  readonly spec?: { readonly template: { readonly spec: Record<string, unknown> } };
}

const parse = (text: string): Manifest[] =>
  parseAllDocuments(text).flatMap((document) => (document.toJS() as Manifest | null) ?? []);

function hasHelm(): boolean {
  if (existsSync(peer('helm'))) return hasRealApi();
  if (process.env.REQUIRE_PEERS === '1') {
    throw new Error('helm is missing; run test/peers/install.sh helm');
  }
  return false;
}

const DEFAULTS = new Set([
  '--data-movers=velero',
  '--daemonset=node-agent',
  '--agent-selector=role=node-agent',
]);
const OVERLAYS = [
  ['beside-velero', 'longshore-node-agent', []],
  ['instead-of-velero', 'node-agent', ['--set', 'name=node-agent,dataMovers=velero']],
] as const;

describe.skipIf(!hasHelm())('what is delivered, on a real API server', () => {
  let api: RealApi;
  beforeAll(async () => {
    api = await startRealApi(21_800);
    await api.client.create(NAMESPACES, { metadata: { name: 'velero' } });
  });
  afterAll(async () => {
    await api[Symbol.asyncDispose]();
  });

  const overlay = (name: string): Promise<string> =>
    api.kubectl('kustomize', join(ROOT, 'manifests', name));
  const chart = (...flags: string[]): string =>
    execFileSync(
      peer('helm'),
      ['template', 'longshore', join(ROOT, 'manifests/helm/longshore'), '-n', 'velero', ...flags],
      { encoding: 'utf8', env: { ...process.env, HOME: api.directory } },
    );
  const apply = async (text: string): Promise<string> => {
    const file = join(api.directory, 'manifest.yaml');
    await fs.writeFile(file, text);
    return api.kubectl(
      'apply',
      '--dry-run=server',
      '--validate=strict',
      '-n',
      'velero',
      '-f',
      file,
    );
  };

  it.each(OVERLAYS)('overlay %s is what the API server takes', async (name, daemonSet) => {
    const said = await apply(await overlay(name));
    expect(said).toContain(`daemonset.apps/${daemonSet} created`);
    expect(said).not.toMatch(/warning|unknown/i);
  });

  it.each(OVERLAYS)(
    'the chart can be overlay %s: same rights, same pods',
    async (name, _, flags) => {
      const ours = parse(await overlay(name));
      const charts = parse(chart(...flags));
      const of = (list: Manifest[], kind: string): Manifest | undefined =>
        list.find((manifest) => manifest.kind === kind);
      for (const kind of ['Role', 'ClusterRole']) {
        expect(of(charts, kind)?.rules).toEqual(of(ours, kind)?.rules);
      }
      expect(of(charts, 'DaemonSet')?.metadata.name).toBe(of(ours, 'DaemonSet')?.metadata.name);
      const podOf = (list: Manifest[]): Record<string, unknown> => {
        const pod = of(list, 'DaemonSet')?.spec?.template.spec ?? {};
        const [container = {}] = pod.containers as Record<string, unknown>[];
        // The chart says some defaults too.
        const args = new Set((container.args as string[]).filter((arg) => !DEFAULTS.has(arg)));
        return { ...pod, containers: [{ ...container, args, image: '' }] };
      };
      expect(podOf(charts)).toEqual(podOf(ours));
      expect(await apply(chart(...flags))).toContain('daemonset.apps/');
    },
  );

  it('every value of the chart reaches the pods', async () => {
    const text = chart(
      ...['--set', 'image.repository=registry.test/agent,image.tag=v9,nodeAgentConfigMap=settings'],
      ...['--set', 'extraArgs[0]=--log-level=debug,extraEnv[0].name=A,extraEnv[0].value=b'],
      ...['--set', 'nodeSelector.disk=ssd,tolerations[0].operator=Exists'],
      ...['--set', 'resources.limits.memory=1Gi'],
    );
    expect(await apply(text)).toContain('daemonset.apps/longshore-node-agent created');
    const pod = parse(text).find(({ kind }) => kind === 'DaemonSet')?.spec?.template.spec;
    expect(pod).toMatchObject({
      nodeSelector: { disk: 'ssd' },
      tolerations: [{ operator: 'Exists' }],
      containers: [{ image: 'registry.test/agent:v9', resources: { limits: { memory: '1Gi' } } }],
    });
    const [container] = pod?.containers as { args: string[]; env: object[] }[];
    expect(container?.args).toContain('--node-agent-configmap=settings');
    expect(container?.args).toContain('--log-level=debug');
    expect(container?.env).toContainEqual({ name: 'A', value: 'b' });
  });
});

describe('monitoring', () => {
  it('asks for metrics that there are', async () => {
    const metrics = new AgentMetrics('node');
    metrics.observe({
      phases: () => [],
      dataPaths: () => ({ used: 0, limit: 0 }),
      exposing: () => 0,
      memoryLimitBytes: undefined,
      silentSeconds: () => 0,
    });
    const known = new Set(
      (await metrics.registry.getMetricsAsJSON()).flatMap(({ name, type }) =>
        String(type) === 'histogram' ? [`${name}_bucket`, `${name}_sum`, `${name}_count`] : [name],
      ),
    );
    for (const file of ['alerts.yaml', 'dashboard.json']) {
      const text = readFileSync(join(ROOT, 'manifests/monitoring', file), 'utf8');
      const used = new Set(text.match(/\b(longshore|podVolume|process)_[A-Za-z_]+/g));
      expect(used.size).toBeGreaterThan(2);
      for (const name of used) expect(known, `${file} asks for ${name}`).toContain(name);
    }
  });
});
