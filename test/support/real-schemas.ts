/** `npm run build:schemas`: copies schemas of Kubernetes' own kinds from a real API server. */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { brotliCompressSync, brotliDecompressSync } from 'node:zlib';
import { CRDS } from '../../src/kube/index.ts';
import { DEV_RESOURCES } from '../../src/dev/api-server/resources.ts';
import { PEERS_DIR, type RealApi, startRealApi } from './real-api.ts';

type Schemas = Record<string, Record<string, unknown>>;

const FILE = new URL('../../src/dev/api-server/schemas.json.br', import.meta.url);
const LOCATIONS = 'velero.io_backupstoragelocations.yaml';

/** The schemas in the repository. */
export const checkedInSchemas = (): Schemas =>
  JSON.parse(brotliDecompressSync(readFileSync(FILE)).toString('utf8')) as Schemas;

/** Schemas of the embedded API server's kinds that are not ours, with all referenced schemas. */
export async function realSchemas(api: RealApi): Promise<Schemas> {
  // Velero's own definition, instead of the short one for tests.
  await api.kubectl('replace', '-f', join(PEERS_DIR, 'crds/velero-v1', LOCATIONS));
  const foreign = DEV_RESOURCES.filter(({ kind }) => CRDS.every((crd) => crd.kind !== kind));
  const wanted: Schemas = {};
  const roots = new Set(
    foreign.map(({ group, version }) => `${group === '' ? 'api' : `apis/${group}`}/${version}`),
  );
  for (const root of roots) {
    const document = await documentOf(api, root);
    const all = document.components.schemas;
    const names = new Set(Object.keys(all).filter((name) => isOneOf(foreign, all[name])));
    for (const name of names) {
      const refs = JSON.stringify(all[name]).matchAll(/"#\/components\/schemas\/([^"]+)"/g);
      for (const [, referred = ''] of refs) names.add(referred);
      wanted[name] = all[name] ?? {};
    }
  }
  return Object.fromEntries(Object.entries(wanted).sort(([a], [b]) => (a < b ? -1 : 1)));
}

async function documentOf(
  api: RealApi,
  root: string,
): Promise<{ components: { schemas: Schemas } }> {
  for (let attempt = 0; ; attempt++) {
    const isLast = attempt > 150;
    // A new or changed definition is published a moment later. Until then its group has no
    // document, or the old one.
    const text = await api
      .kubectl('get', '--raw', `/openapi/v3/${root}`)
      .catch((error: unknown) => {
        if (isLast || !String(error).includes('NotFound')) throw error;
        return undefined;
      });
    if (
      text !== undefined &&
      (isLast || !root.includes('velero') || text.includes('lastValidationTime'))
    ) {
      return JSON.parse(text) as { components: { schemas: Schemas } };
    }
    await new Promise((resume) => setTimeout(resume, 200));
  }
}

function isOneOf(
  kinds: readonly { group: string; version: string; kind: string }[],
  schema: Record<string, unknown> = {},
): boolean {
  const said = (schema['x-kubernetes-group-version-kind'] ?? []) as typeof kinds;
  return said.some((one) =>
    kinds.some(
      ({ group, version, kind }) =>
        one.group === group && one.version === version && one.kind === kind,
    ),
  );
}

if (import.meta.main) {
  await using api = await startRealApi(27_300);
  writeFileSync(FILE, brotliCompressSync(JSON.stringify(await realSchemas(api))));
}
