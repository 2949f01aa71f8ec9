import { existsSync, globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { parse } from 'yaml';
import { kustomized, type Manifest } from './kustomize.ts';

/** What is installed, before anything of one cluster is in it. */
export interface InstallAssets {
  readonly definitions: readonly Manifest[];
  /** manifests/whole. */
  readonly objects: readonly Manifest[];
}

/** From a checkout. Throws `BAD_MANIFESTS`. */
export function assetsOf(root: string): InstallAssets {
  const files = globSync('crds/**/*.yaml', { cwd: root }).sort();
  return {
    definitions: files.map((file) => parse(readFileSync(join(root, file), 'utf8')) as Manifest),
    objects: kustomized(join(root, 'manifests/whole')),
  };
}

/** In the installed program they are one file beside it. Each call has copies of its own. */
export function loadAssets(): InstallAssets {
  const packed = new URL('install.json', import.meta.url);
  if (existsSync(packed)) return JSON.parse(readFileSync(packed, 'utf8')) as InstallAssets;
  return assetsOf(new URL('../../../', import.meta.url).pathname);
}
