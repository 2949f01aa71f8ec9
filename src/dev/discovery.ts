import { apiVersionOf } from '../kube/index.ts';
import { DEV_RESOURCES } from './resources.ts';

/** What clients ask before anything else: groups, kinds, and as much of OpenAPI as kubectl wants; undefined for all other paths. */
export function discovery(path: string): object | undefined {
  const groups = new Map<string, string>();
  for (const { group, version } of DEV_RESOURCES)
    if (group !== '') groups.set(`${group}/${version}`, group);
  if (path === '/version') return { major: '1', minor: '36', gitVersion: 'v1.36.0-longshore-dev' };
  if (path === '/healthz' || path === '/readyz' || path === '/livez') return { status: 'ok' };
  if (path === '/api') return { kind: 'APIVersions', versions: ['v1'] };
  if (path === '/apis') {
    const names = [...new Set(groups.values())];
    return {
      kind: 'APIGroupList',
      apiVersion: 'v1',
      groups: names.map((name) => {
        const versions = [...groups.entries()]
          .filter(([, group]) => group === name)
          .map(([groupVersion]) => ({ groupVersion, version: groupVersion.split('/')[1] }));
        return { name, versions, preferredVersion: versions[0] };
      }),
    };
  }
  if (path === '/openapi/v3') return openApiIndex();
  if (path.startsWith('/openapi/v3/')) return openApiOf(path.slice('/openapi/v3/'.length));
  const match = /^\/(?:api\/(v1)|apis\/([^/]+\/[^/]+))$/.exec(path);
  if (!match) return undefined;
  const groupVersion = match[1] ?? match[2] ?? '';
  const resources = DEV_RESOURCES.filter((resource) => apiVersionOf(resource) === groupVersion);
  if (resources.length === 0) return undefined;
  return {
    kind: 'APIResourceList',
    apiVersion: 'v1',
    groupVersion,
    resources: resources.map(({ plural, kind, namespaced }) => ({
      name: plural,
      singularName: kind.toLowerCase(),
      namespaced,
      kind,
      verbs: ['create', 'delete', 'get', 'list', 'patch', 'update', 'watch'],
      shortNames: SHORT_NAMES[plural] ?? [],
    })),
  };
}

const SHORT_NAMES: Record<string, string[]> = {
  pods: ['po'],
  persistentvolumeclaims: ['pvc'],
  persistentvolumes: ['pv'],
  namespaces: ['ns'],
  nodes: ['no'],
  events: ['ev'],
  volumesnapshots: ['vs'],
  volumesnapshotcontents: ['vsc'],
};

const rootOf = (groupVersion: string): string =>
  groupVersion.includes('/') ? `apis/${groupVersion}` : `api/${groupVersion}`;

function openApiIndex(): object {
  const roots = [...new Set(DEV_RESOURCES.map((resource) => rootOf(apiVersionOf(resource))))];
  const paths = roots.map((root) => [root, { serverRelativeURL: `/openapi/v3/${root}` }]);
  return { paths: Object.fromEntries(paths) as object };
}

/** Says of each kind that the server checks fields itself, so that kubectl does not try. */
function openApiOf(root: string): object | undefined {
  const found = DEV_RESOURCES.filter((resource) => rootOf(apiVersionOf(resource)) === root);
  if (found.length === 0) return undefined;
  const paths = found.map(({ group, version, kind, plural, namespaced }) => [
    `/${root}/${namespaced ? 'namespaces/{namespace}/' : ''}${plural}/{name}`,
    {
      patch: {
        parameters: [{ name: 'fieldValidation', in: 'query', schema: { type: 'string' } }],
        responses: { 200: { description: 'OK' } },
        'x-kubernetes-action': 'patch',
        'x-kubernetes-group-version-kind': { group, version, kind },
      },
    },
  ]);
  return {
    openapi: '3.0.0',
    info: { title: 'longshore-dev', version: '1' },
    paths: Object.fromEntries(paths) as object,
  };
}
