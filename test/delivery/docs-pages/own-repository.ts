import * as fs from 'node:fs';
import { join } from 'node:path';
import type { DocumentedCluster } from '../../support/docs/documented-cluster.ts';

/** A repository of the machine itself, in a directory, and the directory `/data` of the pages. */
export interface OwnRepository {
  /** What names it on a command line. */
  readonly flags: string;
  /** The source of its snapshots, once there is one. */
  source: string;
  create(): Promise<void>;
  remove(): void;
  writePassword(password: string): void;
}

export function makeOwnRepository(cluster: DocumentedCluster, name: string): OwnRepository {
  const { directory } = cluster;
  const folder = join(directory, 'backup', name);
  const password = `${folder}.password`;
  const flags = `--repo ${folder} --password-file ${password}`;
  const own: OwnRepository = {
    flags,
    source: '',
    create: async () => {
      writeData(cluster);
      fs.mkdirSync(folder, { recursive: true });
      own.writePassword('a-password');
      await cluster.sh(`longshore repository create ${flags}`);
    },
    remove: () => fs.rmSync(folder, { recursive: true }),
    writePassword: (text) => fs.writeFileSync(password, text),
  };
  return own;
}

/** The id of its newest snapshot; its source is noted. */
export async function ownSnapshot(cluster: DocumentedCluster, own: OwnRepository): Promise<string> {
  const listed = await cluster.sh(`longshore snapshot list --all -o json ${own.flags}`);
  const found = (JSON.parse(listed) as { id: string; source: { text: string } }[]).at(-1);
  if (!found) throw new Error('there is no snapshot');
  own.source = found.source.text;
  return found.id;
}

/** The directory `/data` of the pages. */
export function writeData({ directory }: DocumentedCluster): void {
  fs.rmSync(join(directory, 'data'), { recursive: true, force: true });
  fs.mkdirSync(join(directory, 'data/etc'), { recursive: true });
  fs.writeFileSync(join(directory, 'data/etc/hosts'), '127.0.0.1 shop\n');
}

/** The repository `prod` of the pages, with the password that `pass` says, unless it is there. */
export async function makeProdRepository(cluster: DocumentedCluster): Promise<void> {
  const flags = "--repo s3://backups/prod/ --password-command 'pass show backup'";
  await cluster.sh(`longshore repository status ${flags} || longshore repository create ${flags}`);
}
