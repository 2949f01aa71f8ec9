import { apiVersionOf } from '../../kube/index.ts';
import { DEV_RESOURCES, isReadOnly, namesOf } from './resources.ts';
import { REVIEWS } from './access-reviews.ts';

const READ = ['get', 'list', 'watch'];
const WRITE = ['create', 'delete', 'deletecollection', 'patch', 'update'];

/** Groups and kinds, which clients read first; undefined for all other paths. */
export function discovery(path: string): object | undefined {
  const groups = new Map<string, string>();
  for (const { group, version } of DEV_RESOURCES)
    if (group !== '') groups.set(`${group}/${version}`, group);
  for (const { group } of REVIEWS) groups.set(`${group}/v1`, group);
  if (path === '/version') return { major: '1', minor: '36', gitVersion: 'v1.36.0-longshore-dev' };
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
  const match = /^\/(?:api\/(v1)|apis\/([^/]+\/[^/]+))$/.exec(path);
  if (!match) return undefined;
  const groupVersion = match[1] ?? match[2] ?? '';
  const resources = DEV_RESOURCES.filter((resource) => apiVersionOf(resource) === groupVersion);
  const reviews = REVIEWS.filter(({ group }) => `${group}/v1` === groupVersion);
  if (resources.length + reviews.length === 0) return undefined;
  return {
    kind: 'APIResourceList',
    apiVersion: 'v1',
    groupVersion,
    resources: [
      ...resources.map((resource) => ({
        name: resource.plural,
        singularName: resource.kind.toLowerCase(),
        namespaced: resource.namespaced,
        kind: resource.kind,
        verbs: isReadOnly(resource) ? READ : [...READ, ...WRITE].sort(),
        ...namesOf(resource),
      })),
      ...reviews.map(({ plural, kind }) => ({
        name: plural,
        singularName: kind.toLowerCase(),
        namespaced: false,
        kind,
        verbs: ['create'],
      })),
    ],
  };
}
