import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import * as fs from 'node:fs/promises';
import { join } from 'node:path';
import { expect } from 'vitest';
import { parseAllDocuments } from 'yaml';
import { hasRealApi, peer, type RealApi } from './real-api.ts';
import type { Rule } from './rights.ts';

const ROOT = new URL('../../', import.meta.url).pathname;
export const CHART = join(ROOT, 'manifests/helm/longshore');

export interface Manifest {
  readonly kind: string;
  readonly metadata: {
    readonly name: string;
    readonly namespace?: string;
    readonly labels?: Readonly<Record<string, string>>;
    readonly annotations?: Readonly<Record<string, string>>;
  };
  readonly rules?: readonly Rule[];
  readonly roleRef?: { readonly name: string };
  readonly subjects?: readonly { readonly name: string; readonly namespace?: string }[];
  readonly spec?: {
    readonly updateStrategy?: object;
    readonly template: {
      readonly metadata: {
        readonly labels: Readonly<Record<string, string>>;
        readonly annotations?: Readonly<Record<string, string>>;
      };
      readonly spec: Readonly<Record<string, unknown>>;
    };
  };
}

export const parseManifests = (text: string): Manifest[] =>
  parseAllDocuments(text).flatMap((document) => (document.toJS() as Manifest | null) ?? []);

export const ofKind = (list: readonly Manifest[], kind: string): Manifest[] =>
  list
    .filter((manifest) => manifest.kind === kind)
    .sort((a, b) => (a.metadata.name < b.metadata.name ? -1 : 1));

/** Whether helm and a real API server are installed. With REQUIRE_PEERS=1, they must be. */
export function hasHelm(): boolean {
  if (existsSync(peer('helm'))) return hasRealApi();
  if (process.env.REQUIRE_PEERS === '1') {
    throw new Error('helm is missing; run test/peers/install.sh helm');
  }
  return false;
}

const environmentOf = ({ directory, kubeconfig }: RealApi): NodeJS.ProcessEnv => ({
  ...process.env,
  HOME: directory,
  KUBECONFIG: kubeconfig,
});

/** The output of helm. Throws its standard error. */
export const helm = (api: RealApi, ...parameters: string[]): string =>
  execFileSync(peer('helm'), parameters, {
    encoding: 'utf8',
    env: environmentOf(api),
    stdio: ['ignore', 'pipe', 'pipe'],
  });

/** The error output of helm. */
export function helmRefusal(api: RealApi, ...parameters: string[]): string {
  const env = environmentOf(api);
  const { status, stderr } = spawnSync(peer('helm'), parameters, { encoding: 'utf8', env });
  if (status === 0) throw new Error(`helm took ${parameters.join(' ')}`);
  return stderr;
}

export const renderChart = (api: RealApi, ...flags: string[]): string =>
  helm(api, 'template', 'longshore', CHART, '-n', 'velero', ...flags);

export const renderOverlay = (api: RealApi, name: string): Promise<string> =>
  api.kubectl('kustomize', join(ROOT, 'manifests', name));

/** A user's kustomization on a copy of our manifests: kustomize accepts no absolute paths. */
export async function kustomizationOnTop(
  api: RealApi,
  name: string,
  lines: readonly string[],
): Promise<string> {
  const folder = join(api.directory, name);
  await fs.cp(join(ROOT, 'manifests'), join(folder, 'manifests'), { recursive: true });
  await fs.writeFile(join(folder, 'kustomization.yaml'), `${lines.join('\n')}\n`);
  return folder;
}

/** The API server's answer to manifests, as a dry run. */
export async function dryRun(api: RealApi, text: string, namespace = 'velero'): Promise<string> {
  const file = join(api.directory, 'manifest.yaml');
  await fs.writeFile(file, text);
  const flags = ['--dry-run=server', '--validate=strict', '-n', namespace];
  return api.kubectl('apply', ...flags, '-f', file);
}

/** Whether a ServiceAccount may do something, according to the API server. */
export async function mayDo(
  api: RealApi,
  account: string,
  ...what: readonly string[]
): Promise<boolean> {
  const as = `--as=system:serviceaccount:${account}`;
  const said = await api
    .kubectl('auth', 'can-i', ...what, as)
    .catch((error: unknown) => (error as { stdout: string }).stdout);
  return said === 'yes\n';
}

/** A pod that serves TLS with the Secret, and whose probes use TLS. */
export function expectTls(
  pod: Readonly<Record<string, unknown>> | undefined,
  secret: string,
): void {
  const [container] = (pod?.containers ?? []) as [Readonly<Record<string, unknown>>];
  expect(container.args).toContain('--tls-certificate=/tls');
  const mount = { name: 'longshore-tls', mountPath: '/tls', readOnly: true };
  expect(container.volumeMounts).toContainEqual(mount);
  expect(pod?.volumes).toContainEqual({
    name: 'longshore-tls',
    secret: { secretName: secret, defaultMode: 0o440 },
  });
  for (const probe of [container.livenessProbe, container.readinessProbe]) {
    expect(probe).toMatchObject({ httpGet: { port: 'metrics', scheme: 'HTTPS' } });
  }
}
