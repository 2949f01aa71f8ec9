import { readFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';

/** The region of the environment or the profile, as in the AWS tools; undefined without one. */
export function findRegion(
  environment: NodeJS.ProcessEnv,
  profile = environment.AWS_PROFILE ?? 'default',
  file = environment.AWS_CONFIG_FILE ?? join(homedir(), '.aws', 'config'),
): string | undefined {
  const given = environment.AWS_REGION ?? environment.AWS_DEFAULT_REGION;
  if (given !== undefined && given !== '') return given;
  try {
    return regionIn(readFileSync(file, 'utf8'), profile);
  } catch {
    return undefined;
  }
}

/** The region of a profile in the text of ~/.aws/config. */
export function regionIn(text: string, profile: string): string | undefined {
  let isOurs = false;
  for (const line of text.split('\n')) {
    const [, section] = /^\s*\[(?:profile\s+)?([^\]]+)\]/.exec(line) ?? [];
    if (section !== undefined) isOurs = section.trim() === profile;
    const [, region] = /^\s*region\s*=\s*(\S+)/.exec(line) ?? [];
    if (isOurs && region !== undefined) return region;
  }
  return undefined;
}
