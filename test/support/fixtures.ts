import { readdirSync, readFileSync } from 'node:fs';
import { openStorage } from '../../src/blob/index.ts';
import { Secret } from '../../src/base/index.ts';
import { openRepository, type Repository } from '../../src/repository/index.ts';
import { goldenPath } from './golden.ts';

/** The real Kopia's report about a fixture; see test/golden/kopia/README.md. */
export interface Expected {
  password: string;
  hostname: string;
  username: string;
  snapshotList: { id: string; incomplete?: string; rootEntry: { obj: string } }[];
  snapshotsMade: { snapshotID: string; rootObjectID: string; sourceState: string }[];
  sourceStates: Record<string, SourceEntry[]>;
  manifests: { id: string; labels: Record<string, string> }[];
  manifestShow: Record<string, unknown>;
  contents: ExpectedContent[];
  contentsDeleted: ExpectedContent[];
  objects: Record<string, { type: string; length: number; sha256: string }>;
  show: Record<string, string>;
}

export interface ExpectedContent {
  contentID: string;
  packFile: string;
  packOffset: number;
  length: number;
  originalLength: number;
  time: number;
  deleted: boolean;
  compression?: number;
}

export interface SourceEntry {
  path: string;
  pathBase64?: string;
  type: string;
  mode: string;
  mtimeNs: string;
  uid: number;
  gid: number;
  size?: number;
  sha256?: string;
  target?: string;
}

export const FIXTURES = readdirSync(goldenPath(''), { withFileTypes: true })
  .filter((entry) => entry.isDirectory() && entry.name !== 'vectors')
  .map((entry) => entry.name);

export function expectedOf(fixture: string): Expected {
  return JSON.parse(readFileSync(goldenPath(`${fixture}/expected.json`), 'utf8')) as Expected;
}

export async function openFixture(fixture: string): Promise<Repository> {
  const { password, username, hostname } = expectedOf(fixture);
  return openRepository({
    storage: await openStorage(goldenPath(`${fixture}/repo`)),
    password: new Secret(password),
    client: { username, hostname },
  });
}
