import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { parse } from 'yaml';
import { kustomized, type Manifest } from '../../src/cli/install/kustomize.ts';
import { chosenControllers } from '../../src/cli/server/controllers.ts';
import { CONTROLLERS } from '../../src/server/compose/controller-names.ts';

const ROOT = new URL('../../', import.meta.url).pathname;
const MANIFESTS = join(ROOT, 'manifests');

/**
 * Controllers that two servers may run at once, or that a Velero server leaves to another server.
 * All other controllers create or take the same objects as a Velero server.
 */
const SHARED = [
  'backup-repo',
  'backup-storage-location',
  'download-request',
  'server-status-request',
];

function argsOf(objects: readonly Manifest[]): readonly string[] {
  for (const { kind, spec } of objects) {
    if (kind !== 'Deployment') continue;
    const { containers } = (spec as { template: { spec: { containers: { args?: string[] }[] } } })
      .template.spec;
    const args = containers[0]?.args ?? [];
    if (args[0] === 'server') return args;
  }
  throw new Error('there is no server');
}

/** True for manifests/server and the overlays on top of it. */
function hasServer(name: string): boolean {
  if (name === 'server') return true;
  const text = readFileSync(join(MANIFESTS, name, 'kustomization.yaml'), 'utf8');
  const { resources = [] } = parse(text) as { resources?: string[] };
  return resources.some((each) => each.startsWith('../') && hasServer(each.slice('../'.length)));
}

const servers = readdirSync(MANIFESTS)
  .filter((name) => readdirSync(join(MANIFESTS, name)).includes('kustomization.yaml'))
  .filter(hasServer)
  .map((name) => {
    const objects = kustomized(join(MANIFESTS, name));
    return { name, objects, args: argsOf(objects) };
  });
const named = (args: readonly string[]): string | undefined =>
  args.find((arg) => arg.startsWith('--controllers='))?.slice('--controllers='.length);
const mayDoEverything = (objects: readonly Manifest[]): boolean =>
  objects.some(
    ({ kind, ...rest }) =>
      kind === 'ClusterRoleBinding' &&
      (rest as unknown as { roleRef: { name: string } }).roleRef.name === 'cluster-admin',
  );

describe('what the servers that are delivered run', () => {
  it('is all where a server is in the place of Velero’s, and what may be taken from one where it is beside it', () => {
    expect(servers.map(({ name }) => name)).toEqual([
      ...['server', 'server-for-backups', 'server-for-cli', 'whole'],
    ]);
    for (const { name, args, objects } of servers) {
      const text = named(args);
      // A server without a list would run all controllers.
      expect(text, name).toBeDefined();
      const controllers = chosenControllers(text, undefined);
      const isAlone = name === 'server-for-backups' || name === 'whole';
      if (isAlone) expect(controllers, name).toEqual([...CONTROLLERS]);
      else
        expect(
          controllers.filter((each) => !SHARED.includes(each)),
          name,
        ).toEqual([]);
      expect(mayDoEverything(objects), name).toBe(controllers.includes('restore'));
    }
  });

  it('is named in the chart, too: without a word only what may be taken from a Velero server', () => {
    const chart = join(MANIFESTS, 'helm/longshore');
    const values = parse(readFileSync(join(chart, 'values.yaml'), 'utf8')) as {
      server: { enabled: boolean; controllers: string[] };
    };
    expect(values.server).toMatchObject({ enabled: false, controllers: ['backup-repo'] });
    const schema = JSON.parse(readFileSync(join(chart, 'values.schema.json'), 'utf8')) as {
      properties: { server: { properties: { controllers: { minItems?: number; items: object } } } };
    };
    const { controllers } = schema.properties.server.properties;
    expect(controllers.items).toEqual({ enum: [...CONTROLLERS] });
    // An empty list would be no flag, and with that all.
    expect(controllers.minItems).toBe(1);
  });
});
