// Does what a Node application does with its credentials, and prints one JSON line about it.
//
// usage: application.js LIBRARY session STEP...
//        application.js LIBRARY token         one token, as a process that starts
//        application.js LIBRARY many COUNT    so many tokens at once
//        application.js LIBRARY stay FILE     token after token, none remembered, until FILE exists
//
// LIBRARY is gcp-metadata, google-auth-library, @opentelemetry/resource-detector-gcp or firebase-admin, of the version that NODE_PATH
// holds.
'use strict';

const fs = require('fs');

const CLOUD_PLATFORM = 'https://www.googleapis.com/auth/cloud-platform';
// A scope of its own, so that this is no token that the proxy has from its start.
const READ_ONLY = 'https://www.googleapis.com/auth/devstorage.read_only';
const AUDIENCE = 'https://example.com';

const libraries = {
  'gcp-metadata': () => {
    const metadata = require('gcp-metadata');
    const token = async scopes => {
      const params = scopes && {scopes};
      return (await metadata.instance({property: 'service-accounts/default/token', params})).access_token;
    };
    return {
      metadata,
      token: () => token(READ_ONLY),
      steps: {
        detect: () => metadata.isAvailable(),
        project: () => metadata.project('project-id'),
        token: () => token(),
        account: () => metadata.instance('service-accounts/default/email'),
        scoped: () => token(CLOUD_PLATFORM),
        refresh: () => token(CLOUD_PLATFORM),
        identity: () =>
          metadata.instance({property: 'service-accounts/default/identity', params: {audience: AUDIENCE}}),
        universe: () => metadata.universe('universe-domain'),
      },
    };
  },

  'google-auth-library': () => {
    const {Compute, GoogleAuth, gcpMetadata} = require('google-auth-library');
    const auth = new GoogleAuth({scopes: CLOUD_PLATFORM});
    const fresh = async scopes => (await new Compute({scopes}).getAccessToken()).token;
    return {
      metadata: gcpMetadata,
      token: () => fresh(READ_ONLY),
      steps: {
        detect: async () => (await auth.getApplicationDefault()).credential instanceof Compute,
        project: () => auth.getProjectId(),
        token: () => fresh(),
        account: async () => (await auth.getCredentials()).client_email,
        scoped: () => auth.getAccessToken(),
        refresh: () => fresh([CLOUD_PLATFORM]),
        identity: async () => (await auth.getIdTokenClient(AUDIENCE)).getRequestHeaders(),
        universe: () => auth.getUniverseDomain(),
      },
    };
  },

  '@opentelemetry/resource-detector-gcp': () => {
    const {gcpDetector} = require('@opentelemetry/resource-detector-gcp');
    const {detectResources} = require('@opentelemetry/resources');
    // As every pod has it.
    process.env.KUBERNETES_SERVICE_HOST = '10.0.0.1';
    return {
      steps: {
        platform: async () => {
          const found = detectResources({detectors: [gcpDetector]});
          await found.waitForAsyncAttributes();
          return ['cloud.platform', 'k8s.cluster.name', 'cloud.region'].map(key => found.attributes[key]).join(' ');
        },
        machine: async () => {
          // As nothing in a pod is.
          delete process.env.KUBERNETES_SERVICE_HOST;
          const found = detectResources({detectors: [gcpDetector]});
          await found.waitForAsyncAttributes();
          return ['host.id', 'host.name', 'cloud.availability_zone'].map(key => found.attributes[key]).join(' ');
        },
      },
    };
  },

  'firebase-admin': () => {
    const {applicationDefault} = require('firebase-admin/app');
    const token = async () => (await applicationDefault().getAccessToken()).access_token;
    return {steps: {token, refresh: token}};
  },
};

async function attempt(step) {
  try {
    return {ok: await step()};
  } catch (error) {
    // What the server said is with the error, not in its message.
    const said = error.response && error.response.data;
    return {error: [error.message, said].filter(Boolean).join(': ')};
  }
}

function tally(outcomes) {
  return {
    tokens: outcomes.filter(one => !('error' in one)).map(one => one.ok),
    errors: outcomes.filter(one => 'error' in one).map(one => one.error),
  };
}

const modes = {
  async session({steps}, ...names) {
    const seen = {};
    for (const name of names) {
      seen[name] = await attempt(steps[name]);
    }
    return {steps: seen};
  },

  async token({metadata, token}) {
    // Off Google's hardware the library gives a request 3 s, in which many processes that start at once on few cores do not
    // all get a turn. On it, as on a node, there is no limit.
    metadata?.setGCPResidency?.(true);
    return tally([await attempt(token)]);
  },

  async many({token}, count) {
    return tally(await Promise.all(Array.from({length: Number(count)}, () => attempt(token))));
  },

  async stay({token}, file) {
    const outcomes = [];
    while (!fs.existsSync(file)) {
      outcomes.push(await attempt(token));
    }
    return tally(outcomes);
  },
};

async function main(name, mode, ...rest) {
  const seen = await modes[mode](libraries[name](), ...rest);
  const {version} = require(`${process.env.NODE_PATH}/${name}/package.json`);
  console.log(JSON.stringify({version, ...seen}));
}

main(...process.argv.slice(2));
