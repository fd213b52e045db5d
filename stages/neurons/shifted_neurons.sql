-- The neurons whose activation is shifted at the last position, and by how much. If all neurons are
-- patched one at a time (patched_neurons is 0), these are all neurons of the activation store. Of a
-- larger model they are the late neurons of neuron_interventions: those with the largest
-- attribution, and random ones.
--
-- subject   VARCHAR   the model
-- operator  VARCHAR   operator whose prompts are run: add, subtract, multiply or divide
-- layer     SMALLINT  decoder layer, from 0
-- neuron    INTEGER   neuron of the layer's MLP, from 0
-- std       DOUBLE    standard deviation of the activation over the operator's cells, which is the
--                     size of the shift
with
    patched as (
        select operator, layer, units[1] as neuron
        from neuron_interventions
        where position = 'last' and $patched_neurons > 0
    )
select $subject as subject, operator, layer, neuron, sqrt(variance) as std
from neuron_variances as own
where $patched_neurons = 0
    or exists (
        from patched
        where patched.layer = own.layer and patched.neuron = own.neuron
            and coalesce(patched.operator, own.operator) = own.operator
    )
order by operator, layer, neuron
